"""Ownership of a workdir: only one process at a time, of one experiment, may write there.

The owner locks the file `.owner`, which identifies it. The lock belongs to the open file, so the
system releases it when the process ends, even in a crash; a leftover file locks nobody out. On NFS
the server keeps the lock, so it works across machines; if a client vanishes, the server releases
its locks after the lease, about 90 s. Reading needs no lock. On a file system whose locks other
machines cannot see, the owner holds a `Claim` instead.
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
# Shared file systems, and options of NFS, SMB and Lustre, whose locks hold on one machine only.
_LOCAL_LOCKS = {"fuse", "virtiofs", "nolock", "local_lock=all", "local_lock=flock", "nobrl",
                "localflock"}
_open: weakref.WeakSet[io.FileIO] = weakref.WeakSet()
_claims: dict[pathlib.Path, Claim] = {}


def _let_go() -> None:
  for file in _open:
    file.close()


# A forked process shares the open file, and would keep the lock after the owner ends. Programs
# started by this process do not inherit the file, because Python closes it for them.
os.register_at_fork(after_in_child=_let_go)


@contextlib.contextmanager
def owned(workdir: pathlib.Path) -> Iterator[None]:
  """Owns `workdir` while the body runs; creates the folder if it is missing.

  Waits up to `claim.WAIT_SECONDS` for an owner that is about to end.

  Raises:
    UsageError: another process owns the folder, it holds a run of a different experiment, or it
      cannot be written.
  """
  experiment = reader.read_facts(workdir).get("experiment", command.experiment())
  if experiment != command.experiment():
    raise UsageError(f"--workdir={workdir}: contains a run of the experiment '{experiment}', not "
                     f"'{command.experiment()}'; choose another folder")
  with contextlib.ExitStack() as stack:
    try:
      workdir.mkdir(parents=True, exist_ok=True)
      store = Folder(workdir)
      file = None
      while file is None:
        is_new = store.create(FILE, b"")
        with contextlib.suppress(FileNotFoundError):  # A claim that has just ended.
          file = (workdir / FILE).open("rb+", buffering=0)
      stack.enter_context(file)  # Closing it unlocks it.
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
      raise UsageError(f"--workdir={workdir}: cannot be written ({error.strerror}); choose another "
                       "folder") from error
    yield


def check(workdir: pathlib.Path) -> None:
  """Raises the UsageError of `owned` early; skips a new folder, which `owned` will create."""
  if (workdir / FILE).exists():
    with owned(workdir):
      pass


def confirm(workdir: pathlib.Path) -> None:
  """Calls `Claim.confirm` if this process owns the workdir by a claim; may raise its RunFailed."""
  if claim := _claims.get(workdir):
    claim.confirm()


def _locked(file: io.FileIO, workdir: pathlib.Path) -> bool:
  """Locks the file; returns False if its file system has no locks that other machines see."""
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
  """Returns whether a possibly shared file system keeps locks on this machine only (Linux)."""
  device = os.fstat(file.fileno()).st_dev
  name = f"{os.major(device)}:{os.minor(device)}"
  mounts = _MOUNTS.read_text().splitlines() if _MOUNTS.exists() else []
  for fields in (line.split() for line in mounts):
    kind, options = fields[fields.index("-") + 1], fields[-1]
    if fields[2] == name:
      return not _LOCAL_LOCKS.isdisjoint([kind.partition(".")[0], *options.split(",")])
  return False
