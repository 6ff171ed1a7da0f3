"""A claim on a workdir: the content of its `.owner` says which process owns it.

On object stores, and file systems whose locks other machines cannot see, the file itself is the
lock: only one process can create it, and removes it when it ends. If that process ran on this
machine and is gone, the next one takes over the file. Whether a process on another machine or in
another container is alive cannot be known, so the user must pass `--take_over`. If the old owner
is still alive, it notices at its next checkpoint, and ends.
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
_CLAIM_SECONDS = 1.0  # Between checks of a claim; replacing it takes less time than this.
_BOOT = pathlib.Path("/proc/sys/kernel/random/boot_id")
_NUMBERING = pathlib.Path("/proc/self/ns/pid")  # Each container numbers its own processes.
_may_take_over = False


def take_over(allowed: bool) -> None:
  """Sets whether a workdir may be taken over from an owner on another machine."""
  global _may_take_over
  _may_take_over = allowed


class Store(Protocol):
  """The place of a claim: a folder, or an object store."""

  def create(self, name: str, content: bytes) -> bool:
    """Creates a file unless it exists; returns whether it was created."""

  def read(self, name: str) -> bytes:
    """Returns the content of a file; empty if it does not exist."""

  def write(self, name: str, content: bytes) -> None:
    """Replaces a file."""

  def remove(self, name: str) -> None:
    """Removes a file if it exists."""


class Claim:
  """Ownership of a workdir through the content of its `.owner`.

  `store` holds that file; only one of several processes can `create` it. `workdir` is the path or
  URL of the workdir.
  """

  def __init__(self, store: Store, workdir: str):
    self._store = store
    self._workdir = workdir
    self._me = this_process()

  def take(self, is_new: bool = False) -> None:
    """Takes the workdir; `is_new` means that this process has just created the empty file.

    Raises a UsageError if another process still owns it after `WAIT_SECONDS`.
    """
    if is_new:
      self._store.write(FILE, self._me)
    else:
      wait_for(self._holder, self._workdir, _CLAIM_SECONDS)

  def confirm(self) -> None:
    """Records that this process is alive; raises a RunFailed if another one owns the workdir."""
    content = self._store.read(FILE)
    if not self._is_mine(content):
      raise RunFailed(f"{self._workdir}: was taken over by {shown(content)}; this process ends")
    self._store.write(FILE, self._me + f"\n{_now()}".encode())

  def release(self) -> None:
    """Removes the file, unless another process owns it now; ignores failures."""
    with contextlib.suppress(Exception):  # The next process can tell that this one is gone.
      if self._is_mine(self._store.read(FILE)):
        self._store.remove(FILE)

  def _is_mine(self, content: bytes) -> bool:
    return content.startswith(self._me)

  def _holder(self) -> str:
    """Returns the owner, and a remedy on a second line; empty if this process owns the workdir."""
    if self._store.create(FILE, self._me):
      return ""
    content = self._store.read(FILE)
    if self._is_mine(content):  # The first reply was lost, and the request was sent again.
      return ""
    is_here, lives = _process_of(content)
    if lives and (is_here or not _may_take_over):
      return shown(content) + ("" if is_here else
                               "\n; if that process is gone, add --take_over to the command")
    print(f"note: {self._workdir}: taken over from {shown(content)}", file=sys.stderr, flush=True)
    self._store.write(FILE, self._me)
    time.sleep(_CLAIM_SECONDS)  # Another process may be doing the same; the last one to write wins.
    content = self._store.read(FILE)
    return "" if self._is_mine(content) else shown(content)


class Folder(Store):
  """A folder that stores a claim."""

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
  """Waits until `holder` returns ""; raises a UsageError after `WAIT_SECONDS`."""
  deadline = time.monotonic() + WAIT_SECONDS
  told = False
  while name := holder():
    name, _, remedy = name.partition("\n")
    if time.monotonic() >= deadline:
      raise UsageError(f"--workdir={workdir}: is in use by {name}; wait until it ends, stop "
                       f"it, or choose another folder{remedy}")
    if not told:
      print(f"waiting up to {WAIT_SECONDS:.0f} s for {workdir}, which is in use by {name}",
            file=sys.stderr, flush=True)
      told = True
    time.sleep(poll_seconds)


def this_process() -> bytes:
  """Returns `process 12 on n1 since 2026-02-03 10:11:12 UTC`, and a second line with a unique ID.
  """
  who = f"process {os.getpid()} on {platform.node()} since {_now()}"
  return f"{who}\n{_identity(os.getpid())} {secrets.token_hex(4)}".encode()


def _now() -> str:
  return f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def shown(content: bytes) -> str:
  """Formats an owner for people, with the time of its last checkpoint."""
  who, _, *seen = [*content.decode(errors="replace").splitlines(), "", ""][:3]
  return (who or "another process") + "".join(f", last seen {time}" for time in seen if time)


def _identity(process: int) -> str:
  """Returns the boot ID, the PID namespace, and a process's start time; empty if it is gone.

  PIDs are reused, in containers quickly. Only Linux provides more than the PID.
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
  return "" if fields[0] == "Z" else f"{machine} {fields[19]}"  # A zombie is gone.


def _process_of(content: bytes) -> tuple[bool, bool]:
  """Returns whether an owner is on this machine, and whether it may be alive."""
  found = re.match(rb"process (\d+) on (.*) since .*\n(\S+) (\S+) ", content)
  if not found:
    return False, True
  number, node, machine, began = (text.decode(errors="replace") for text in found.groups())
  is_here = (node, machine) == (platform.node(), _identity(os.getpid()).partition(" ")[0])
  return is_here, not is_here or _identity(int(number)) == f"{machine} {began}"
