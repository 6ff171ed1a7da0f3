"""The owner of a workdir: one process at a time, of one experiment, may write there.

The owner holds a lock on the file `.owner`, which says who it is. The lock belongs to the open
file, so the system releases it when the process ends, even by a crash: a file that is left behind
locks nobody out. On NFS the server keeps the lock, so that it holds between machines; a server that
lost a client releases its locks after the lease, about 90 s. Reading takes no lock. On a file
system without locks that other machines see, the owner has a `Claim` instead.
"""

import contextlib
import fcntl
import io
import os
import pathlib
import weakref
from collections.abc import Iterator

from replicator.console import command
from replicator.errors import UsageError
from replicator.training.workdir import reader
from replicator.training.workdir.claim import FILE, Claim, Folder, shown, this_process, wait_for

_POLL_SECONDS = 0.1
_MOUNTS = pathlib.Path("/proc/self/mountinfo")
# File systems of several machines, and options of NFS, SMB and Lustre, whose locks hold on one.
_LOCAL_LOCKS = {"fuse", "virtiofs", "nolock", "local_lock=all", "local_lock=flock", "nobrl",
                "localflock"}
_open: weakref.WeakSet[io.FileIO] = weakref.WeakSet()
_claims: dict[pathlib.Path, Claim] = {}


def _let_go() -> None:
  for file in _open:
    file.close()


# A forked process shares the open file, and would keep the lock beyond the owner's end. A program
# that is started gets no copy of the file: Python closes it there.
os.register_at_fork(after_in_child=_let_go)


@contextlib.contextmanager
def owned(workdir: pathlib.Path) -> Iterator[None]:
  """Inside, no other process may own `workdir`, which is created if it is missing.

  Waits up to `claim.WAIT_SECONDS` for an owner that is about to end.

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
      store = Folder(workdir)
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
        file.write(this_process())
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
      return shown(file.read())

  try:
    wait_for(holder, str(workdir), _POLL_SECONDS)
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
