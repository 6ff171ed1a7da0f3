"""The claim of a workdir: the content of its `.owner` says which process owns it.

Where no lock helps, on a file system whose locks other machines do not see and on an object store,
the file itself is the lock: only one process can make it, and that process removes it at its end.
If the process was of this machine and is gone, the next one takes the file over. Whether a process
of another machine or container lives, nobody can know: then `--take_over` says so. An owner that
still lives notices at its next checkpoint, and ends.
"""

import contextlib
import datetime
import os
import pathlib
import platform
import re
import secrets
import sys
import time
from collections.abc import Callable
from typing import Protocol

from replicator import atomic
from replicator.errors import RunFailed, UsageError

FILE = ".owner"
# A process that was asked to end may still save. Kubernetes and Slurm kill it after this time.
WAIT_SECONDS = 30.0
_CLAIM_SECONDS = 1.0  # Between two looks at a claim; another process replaces it in less.
_BOOT = pathlib.Path("/proc/sys/kernel/random/boot_id")
_NUMBERING = pathlib.Path("/proc/self/ns/pid")  # A container numbers its processes itself.
_may_take_over = False


def take_over(allowed: bool) -> None:
  """Sets whether a workdir may be taken over from an owner on another machine."""
  global _may_take_over
  _may_take_over = allowed


class Store(Protocol):
  """Where a claim is: a folder, or an object store."""

  def create(self, name: str, content: bytes) -> bool:
    """Makes a file unless there is one; returns whether there was none."""

  def read(self, name: str) -> bytes:
    """The content of a file; empty if there is none."""

  def write(self, name: str, content: bytes) -> None:
    """Replaces a file."""

  def remove(self, name: str) -> None:
    """Removes a file, if it is there."""


class Claim:
  """The ownership of a workdir by the content of its `.owner`.

  `store` has that file; only one of several processes can `create` it. `workdir` is the name of the
  workdir, a path or a URL.
  """

  def __init__(self, store: Store, workdir: str):
    self._store = store
    self._workdir = workdir
    self._me = this_process()

  def take(self, is_new: bool = False) -> None:
    """Owns the workdir from now on; `is_new`: this process has made the file, which is empty.

    Raises a UsageError if another process owns it for `WAIT_SECONDS`.
    """
    if is_new:
      self._store.write(FILE, self._me)
    else:
      wait_for(self._holder, self._workdir, _CLAIM_SECONDS)

  def confirm(self) -> None:
    """Writes that this process lives; raises a RunFailed if another one owns the workdir by now."""
    content = self._store.read(FILE)
    if not self._is_mine(content):
      raise RunFailed(f"{self._workdir}: was taken over by {shown(content)}; this process ends")
    self._store.write(FILE, self._me + f"\n{_now()}".encode())

  def release(self) -> None:
    """Removes the file, unless it is another process's by now; no failure of that matters."""
    with contextlib.suppress(Exception):  # The next process sees that this one is gone.
      if self._is_mine(self._store.read(FILE)):
        self._store.remove(FILE)

  def _is_mine(self, content: bytes) -> bool:
    return content.startswith(self._me)

  def _holder(self) -> str:
    """The process that owns the workdir, and on another line a remedy; empty if this one does."""
    if self._store.create(FILE, self._me):
      return ""
    content = self._store.read(FILE)
    if self._is_mine(content):  # The first answer was lost, and the request was sent again.
      return ""
    is_here, lives = _process_of(content)
    if lives and (is_here or not _may_take_over):
      return shown(content) + ("" if is_here else
                               "\n; if that process is gone, add --take_over to the command")
    print(f"note: {self._workdir}: taken over from {shown(content)}", file=sys.stderr, flush=True)
    self._store.write(FILE, self._me)
    time.sleep(_CLAIM_SECONDS)  # Another process may do the same now; the last one is the owner.
    content = self._store.read(FILE)
    return "" if self._is_mine(content) else shown(content)


class Folder(Store):
  """A folder as a store of claims."""

  def __init__(self, path: pathlib.Path):
    self._path = path

  def create(self, name: str, content: bytes) -> bool:
    try:
      with (self._path / name).open("xb") as file:
        file.write(content)
        return True
    except FileExistsError:
      return False

  def read(self, name: str) -> bytes:
    try:
      return (self._path / name).read_bytes()
    except FileNotFoundError:
      return b""

  def write(self, name: str, content: bytes) -> None:
    atomic.write_whole(self._path / name, content)

  def remove(self, name: str) -> None:
    (self._path / name).unlink(missing_ok=True)


def wait_for(holder: Callable[[], str], workdir: str, poll_seconds: float) -> None:
  """Waits until there is no `holder`; raises a UsageError if that takes `WAIT_SECONDS`."""
  deadline = time.monotonic() + WAIT_SECONDS
  told = False
  while name := holder():
    name, _, remedy = name.partition("\n")
    if time.monotonic() >= deadline:
      raise UsageError(f"--workdir={workdir}: is in use by {name}; let it end or stop it, or "
                       f"write another folder{remedy}")
    if not told:
      print(f"waiting up to {WAIT_SECONDS:.0f} s for {workdir}, which is in use by {name}",
            file=sys.stderr, flush=True)
      told = True
    time.sleep(poll_seconds)


def this_process() -> bytes:
  """`process 12 on n1 since 2026-02-03 10:11:12 UTC`; below, what no other process has."""
  who = f"process {os.getpid()} on {platform.node()} since {_now()}"
  return f"{who}\n{_identity(os.getpid())} {secrets.token_hex(4)}".encode()


def _now() -> str:
  return f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def shown(content: bytes) -> str:
  """An owner as a person reads it, with the time of its last checkpoint."""
  who, _, *seen = [*content.decode(errors="replace").splitlines(), "", ""][:3]
  return (who or "another process") + "".join(f", last seen {time}" for time in seen if time)


def _identity(process: int) -> str:
  """The machine's boot and numbering, and when a process began; empty if it is gone.

  Numbers of processes are used again, soon in a container. Only Linux says more than the number.
  """
  if not _BOOT.exists():
    with contextlib.suppress(PermissionError):
      try:
        os.kill(process, 0)
      except ProcessLookupError:
        return ""
    return "- -"
  try:
    fields = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
  except OSError:
    return ""
  machine = f"{_BOOT.read_text().strip()}/{os.readlink(_NUMBERING)}"
  return "" if fields[0] == "Z" else f"{machine} {fields[19]}"  # No zombie.


def _process_of(content: bytes) -> tuple[bool, bool]:
  """Whether an owner is of this machine, and whether it may live."""
  found = re.match(rb"process (\d+) on (.*) since .*\n(\S+) (\S+) ", content)
  if not found:
    return False, True
  number, node, machine, began = (text.decode(errors="replace") for text in found.groups())
  is_here = (node, machine) == (platform.node(), _identity(os.getpid()).partition(" ")[0])
  return is_here, not is_here or _identity(int(number)) == f"{machine} {began}"
