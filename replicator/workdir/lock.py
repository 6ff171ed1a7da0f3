"""The owner of a workdir: one process at a time, of one experiment, may write there.

The owner holds a lock on the file `.owner`, which says who it is. The lock belongs to the open
file, so the system releases it when the process ends, even by a crash: a file that is left behind
locks nobody out. On NFS the server keeps the lock, so that it holds between machines; a server that
lost a client releases its locks after the lease, about 90 s. Reading takes no lock.

On a file system without locks that other machines see, and on an object store, the file itself is
the lock, a `Claim`: only one process can make it, and it removes it at its end. If that process was
of this machine and is gone, the next one takes the file over. Whether a process of another machine
or container lives, nobody can know: then `--take_over` says so. An owner that still lives notices
at its next checkpoint, and ends.
"""

import contextlib
import datetime
import fcntl
import io
import os
import pathlib
import platform
import re
import secrets
import sys
import time
import weakref
from collections.abc import Callable, Iterator

from replicator import atomic
from replicator.console import command
from replicator.errors import RunFailed, UsageError
from replicator.storage.mirror import Mirror
from replicator.workdir import reader

FILE = ".owner"
# A process that was asked to end may still save. Kubernetes and Slurm kill it after this time.
WAIT_SECONDS = 30.0
_POLL_SECONDS = 0.1
_BOOT = pathlib.Path("/proc/sys/kernel/random/boot_id")
_NUMBERING = pathlib.Path("/proc/self/ns/pid")  # A container numbers its processes itself.
_MOUNTS = pathlib.Path("/proc/self/mountinfo")
# File systems of several machines, and options of NFS, SMB and Lustre, whose locks hold on one.
_LOCAL_LOCKS = {"fuse", "virtiofs", "nolock", "local_lock=all", "local_lock=flock", "nobrl",
                "localflock"}
_CLAIM_SECONDS = 1.0  # Between two looks at a claim; another process replaces it in less.
_open: weakref.WeakSet[io.FileIO] = weakref.WeakSet()
_claims: dict[pathlib.Path, "Claim"] = {}
_may_take_over = False


def take_over(allowed: bool) -> None:
  """Sets whether a workdir may be taken over from an owner on another machine."""
  global _may_take_over
  _may_take_over = allowed


def _let_go() -> None:
  for file in _open:
    file.close()


# A forked process shares the open file, and would keep the lock beyond the owner's end. A program
# that is started gets no copy of the file: Python closes it there.
os.register_at_fork(after_in_child=_let_go)


@contextlib.contextmanager
def owned(workdir: pathlib.Path) -> Iterator[None]:
  """Inside, no other process may own `workdir`, which is created if it is missing.

  Waits up to `WAIT_SECONDS` for an owner that is about to end.

  Raises:
    UsageError: another process owns the folder, it holds a run of another experiment, or it
      cannot be written.
  """
  experiment = reader.read_facts(workdir).get("experiment", command.experiment())
  if experiment != command.experiment():
    raise UsageError(f"--workdir={workdir}: holds a run of the experiment '{experiment}', not of "
                     f"'{command.experiment()}'; write another folder")
  with contextlib.ExitStack() as stack:
    try:
      workdir.mkdir(parents=True, exist_ok=True)
      store = _Folder(workdir)
      file = None
      while file is None:
        is_new = store.create(FILE, b"")
        with contextlib.suppress(FileNotFoundError):  # A claim that has just ended.
          file = (workdir / FILE).open("rb+", buffering=0)
      stack.enter_context(file)  # To close it unlocks it.
      _open.add(file)
      if _locked(file, workdir):
        file.seek(0)
        file.truncate()
        file.write(_this_process())
        os.fsync(file.fileno())  # Other machines read it.
      else:
        claim = Claim(store, str(workdir))
        claim.take(is_new)
        stack.callback(claim.release)
        stack.callback(_claims.pop, workdir)
        _claims[workdir] = claim
    except OSError as error:
      raise UsageError(f"--workdir={workdir}: cannot be written ({error.strerror}); write another "
                       "folder") from error
    yield


def check(workdir: pathlib.Path) -> None:
  """Raises the UsageError of `owned` before any work; a new folder is left to `owned`."""
  if (workdir / FILE).exists():
    with owned(workdir):
      pass


def confirm(workdir: pathlib.Path) -> None:
  """Raises the RunFailed of `Claim.confirm`, if this process owns the workdir by a claim."""
  if claim := _claims.get(workdir):
    claim.confirm()


def _locked(file: io.FileIO, workdir: pathlib.Path) -> bool:
  """Locks the file; False if its file system has no locks, or none that other machines see."""
  if _locks_are_local(file):
    return False

  def holder() -> str:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      return ""
    except BlockingIOError:
      file.seek(0)
      return _shown(file.read())

  try:
    _wait_for(holder, str(workdir), _POLL_SECONDS)
  except OSError:
    return False
  return True


def _locks_are_local(file: io.FileIO) -> bool:
  """Whether a file system that may be shared keeps its locks on this machine; Linux only."""
  device = os.fstat(file.fileno()).st_dev
  name = f"{os.major(device)}:{os.minor(device)}"
  mounts = _MOUNTS.read_text().splitlines() if _MOUNTS.exists() else []
  for fields in (line.split() for line in mounts):
    kind, options = fields[fields.index("-") + 1], fields[-1]
    if fields[2] == name:
      return not _LOCAL_LOCKS.isdisjoint([kind.partition(".")[0], *options.split(",")])
  return False


def _wait_for(holder: Callable[[], str], workdir: str, poll_seconds: float) -> None:
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


# ---- Claims: what the content of `.owner` says --------------------------------------------------


class Claim:
  """The ownership of a workdir by the content of its `.owner`.

  `store` has that file; only one of several processes can `create` it. `workdir` is the name of the
  workdir, a path or a URL.
  """

  def __init__(self, store: "Mirror | _Folder", workdir: str):
    self._store = store
    self._workdir = workdir
    self._me = _this_process()

  def take(self, is_new: bool = False) -> None:
    """Owns the workdir from now on; `is_new`: this process has made the file, which is empty.

    Raises a UsageError if another process owns it for `WAIT_SECONDS`.
    """
    if is_new:
      self._store.write(FILE, self._me)
    else:
      _wait_for(self._holder, self._workdir, _CLAIM_SECONDS)

  def confirm(self) -> None:
    """Writes that this process lives; raises a RunFailed if another one owns the workdir by now."""
    content = self._store.read(FILE)
    if not self._is_mine(content):
      raise RunFailed(f"{self._workdir}: was taken over by {_shown(content)}; this process ends")
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
      return _shown(content) + ("" if is_here else
                                "\n; if that process is gone, add --take_over to the command")
    print(f"note: {self._workdir}: taken over from {_shown(content)}", file=sys.stderr, flush=True)
    self._store.write(FILE, self._me)
    time.sleep(_CLAIM_SECONDS)  # Another process may do the same now; the last one is the owner.
    content = self._store.read(FILE)
    return "" if self._is_mine(content) else _shown(content)


class _Folder:
  """A folder as a store of objects, see `Mirror`."""

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


def _this_process() -> bytes:
  """`process 12 on n1 since 2026-02-03 10:11:12 UTC`; below, what no other process has."""
  who = f"process {os.getpid()} on {platform.node()} since {_now()}"
  return f"{who}\n{_identity(os.getpid())} {secrets.token_hex(4)}".encode()


def _now() -> str:
  return f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def _shown(content: bytes) -> str:
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
