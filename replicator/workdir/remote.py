"""A run whose workdir is a URL: it trains in a folder of this machine, and the URL has a mirror."""

import contextlib
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Iterator

from replicator.errors import OneLineError, Preempted, RunFailed, UsageError, chain_of
from replicator.storage import mirror
from replicator.storage.mirror import Mirror
from replicator.storage.urls import is_url, locked
from replicator.workdir import lock

_PREFIX = "replicator-workdir-"  # In the folder for temporary files.
_BEHIND = ".behind"  # In a folder that has what the mirror lacks.
_runs: dict[pathlib.Path, "_Run"] = {}  # This process's, by local folder.


@contextlib.contextmanager
def local(workdir: str, is_chief: bool) -> Iterator[str]:
  """Yields the folder where this process trains; that is `workdir`, unless it is a URL.

  For a URL it is a new folder with a copy of the run: for the chief of everything, for others of
  the newest checkpoint. The chief owns the workdir, pushes at each checkpoint, and last of all.
  Then the folder is removed.

  Raises:
    UsageError: the store cannot be used, or another process owns the workdir.
    RunFailed: the end of the run could not be pushed; the folder is kept.
  """
  if not is_url(workdir):
    yield workdir
    return
  store = Mirror(workdir)
  with _scratch() as root:
    folder = root / store.url.rpartition("/")[2]
    folder.mkdir()
    run = _runs[folder] = _Run(store, folder, is_chief)
    try:
      run.begin()
      yield str(folder)
    except Exception as error:
      for each in chain_of(error):  # What they say of the folder is of the URL.
        each.args = tuple(arg.replace(str(folder), store.url) if isinstance(arg, str) else arg
                          for arg in each.args)
      run.end(error)
      raise
    else:
      run.end()
    finally:
      run.release()
      del _runs[folder]


def push(workdir: pathlib.Path) -> bool:
  """Brings the mirror of a workdir up to date, if it has one; returns whether it is.

  The chief calls it after each checkpoint, in the thread that has written it. Raises a RunFailed if
  another process has taken the workdir over.
  """
  lock.confirm(workdir)
  run = _runs.get(workdir)
  return run is None or run.push()


def fetch(workdir: pathlib.Path) -> None:
  """Gets the checkpoints that the chief has pushed meanwhile, if the workdir has a mirror."""
  if run := _runs.get(workdir):
    run.mirror.pull(workdir, "all", logs=False)


def named(line: str, workdir: pathlib.Path) -> str:
  """A line for the user, with the URL in place of the local folder of a run."""
  run = _runs.get(workdir)
  return line.replace(str(workdir), run.mirror.url) if run else line


class _Run:
  """One process's part in a run with a mirror."""

  def __init__(self, mirror: Mirror, folder: pathlib.Path, is_chief: bool):
    self.mirror = mirror
    self._folder = folder
    self._behind = folder.parent / _BEHIND
    self._claim = lock.Claim(mirror, mirror.url) if is_chief else None
    self._is_owner = False

  def begin(self) -> None:
    """Owns the workdir, if this process is the chief, and pulls."""
    if self._claim:
      try:
        self._claim.take()
      except OneLineError:
        raise
      except Exception as error:
        why = mirror.reason(error)
        raise UsageError(f"{self.mirror.url}: cannot be written ({why})") from error
      self._is_owner = True
    self.mirror.pull(self._folder, "all" if self._claim else "newest", logs=bool(self._claim))

  def push(self) -> bool:
    """Pushes; a failure is one line, and False."""
    assert self._claim
    try:
      self._claim.confirm()
      self.mirror.push(self._folder)
      self._behind.unlink(missing_ok=True)
      return True
    except OneLineError:  # It is another process's.
      self._is_owner = False
      raise
    except Exception as error:
      self._behind.touch()
      print(f"warning: {self.mirror.url}: lacks the last checkpoint ({mirror.reason(error)}); it "
            "is sent with the next one", file=sys.stderr, flush=True)
      return False

  def end(self, error: Exception | None = None) -> None:
    """Pushes for the last time; a line or a RunFailed says where the files are if that fails."""
    if not self._claim:
      with contextlib.suppress(Exception):  # What the error left behind is of use, no more.
        self.mirror.add(self._folder, "failures/")
        self.mirror.add(self._folder, "traceback-")
    if not self._is_owner or self.push():
      return
    lacks = (f"{self.mirror.url}: lacks the end of this run, which is in {self._folder}; go on "
             f"there with --workdir={self._folder}, or copy it to the URL")
    if error is None or isinstance(error, Preempted):
      raise RunFailed(lacks) from error
    print(f"warning: {lacks}", file=sys.stderr, flush=True)

  def release(self) -> None:
    if self._claim and self._is_owner:
      self._claim.release()


@contextlib.contextmanager
def _scratch() -> Iterator[pathlib.Path]:
  """A new folder, which is removed unless it is `_BEHIND`; and those that killed runs have left."""
  for left in pathlib.Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
    with contextlib.suppress(OSError), locked(left, wait=False):  # Its process has ended.
      if not (left / _BEHIND).exists():
        shutil.rmtree(left)
  with contextlib.ExitStack() as stack:
    while True:
      root = pathlib.Path(tempfile.mkdtemp(prefix=_PREFIX))
      stack.enter_context(locked(root))
      if root.exists():  # Another process may have removed it before it was locked.
        break
    try:
      yield root
    finally:
      if not (root / _BEHIND).exists():
        shutil.rmtree(root, ignore_errors=True)
