"""The owner of a workdir: one process at a time, of one experiment, may write there.

The owner holds a lock on the file `.owner`, which says who it is. The lock belongs to the open
file, so the system releases it when the process ends, even by a crash: a file that is left behind
locks nobody out. On NFS the server keeps the lock, so that it holds between machines; a server that
lost a client releases its locks after the lease, about 90 s. Reading takes no lock.
"""

import contextlib
import datetime
import fcntl
import io
import os
import pathlib
import platform
import sys
import time
import weakref
from collections.abc import Iterator

from replicator.console import flags
from replicator.errors import UsageError
from replicator.workdir import reader

FILE = ".owner"
# A process that was asked to end may still save. Kubernetes and Slurm kill it after this time.
WAIT_SECONDS = 30.0
_POLL_SECONDS = 0.1
_open: weakref.WeakSet[io.FileIO] = weakref.WeakSet()


def _let_go() -> None:
  for file in _open:
    file.close()


# A forked process shares the open file, and would keep the lock beyond the owner's end. A program
# that is started gets no copy of the file: Python closes it there.
os.register_at_fork(after_in_child=_let_go)


@contextlib.contextmanager
def owned(workdir: pathlib.Path) -> Iterator[None]:
  """Inside, no other process may own `workdir`, which is created if it is missing.

  Waits up to `WAIT_SECONDS` for an owner that is about to end. On a file system without locks it
  prints a line, and does not lock.

  Raises:
    UsageError: another process owns the folder, it holds a run of another experiment, or it
      cannot be written.
  """
  experiment = reader.read_facts(workdir).get("experiment", flags.experiment())
  if experiment != flags.experiment():
    raise UsageError(f"--workdir={workdir}: holds a run of the experiment '{experiment}', not of "
                     f"'{flags.experiment()}'; write another folder")
  with contextlib.ExitStack() as stack:
    try:
      workdir.mkdir(parents=True, exist_ok=True)
      file = (workdir / FILE).open("ab+", buffering=0)
      stack.enter_context(file)  # To close it unlocks it.
      _open.add(file)
      _lock(file, workdir)
      now = datetime.datetime.now(datetime.timezone.utc)
      owner = f"process {os.getpid()} on {platform.node()} since {now:%Y-%m-%d %H:%M:%S} UTC"
      file.truncate(0)
      file.write(owner.encode())
      os.fsync(file.fileno())  # Other machines read it.
    except OSError as error:
      raise UsageError(f"--workdir={workdir}: cannot be written ({error.strerror}); write another "
                       "folder") from error
    yield


def check(workdir: pathlib.Path) -> None:
  """Raises the UsageError of `owned` before any work; a new folder is left to `owned`."""
  if (workdir / FILE).exists():
    with owned(workdir):
      pass


def _lock(file: io.FileIO, workdir: pathlib.Path) -> None:
  """Locks the file; raises a UsageError if another process holds it for `WAIT_SECONDS`."""
  deadline = time.monotonic() + WAIT_SECONDS
  told = False
  while True:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      return
    except BlockingIOError:
      file.seek(0)
      holder = file.read().decode(errors="replace") or "another process"
    except OSError as error:
      print(f"note: {workdir}: its file system has no locks ({error.strerror}); see to it that no "
            "other process trains there", file=sys.stderr, flush=True)
      return
    if time.monotonic() >= deadline:
      raise UsageError(f"--workdir={workdir}: is in use by {holder}; let it end or stop it, or "
                       "write another folder")
    if not told:
      print(f"waiting up to {WAIT_SECONDS:.0f} s for {workdir}, which is in use by {holder}",
            file=sys.stderr, flush=True)
      told = True
    time.sleep(_POLL_SECONDS)
