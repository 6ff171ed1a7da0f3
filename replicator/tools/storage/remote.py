"""Workdirs by URL: copies for reading, and local folders for training."""

import contextlib
import fcntl
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Iterator

from replicator.errors import UsageError, chain_of
from replicator.tools.storage.object_store import ObjectStore
from replicator.training.workdir import places

CACHE = pathlib.Path("~/.cache/replicator/runs")
"""Where `copy_of` keeps its copies."""

_PREFIX = "replicator-workdir-"  # In the system's temporary folder.
_BEHIND = ".behind"  # In a folder with files that the URL still lacks.


def copy_of(url: str, checkpoints: places.Which = "none", may_be_new: bool = False
            ) -> pathlib.Path:
  """Makes or updates a copy of a workdir, for reading; returns its folder.

  Raises a UsageError if the URL cannot be read, or if it holds no run, unless `may_be_new`.
  """
  store = ObjectStore(url)
  parts = [part for part in re.split(r":+/+|/", store.url) if part.strip(".")]
  folder = CACHE.expanduser().joinpath(*parts)
  folder.mkdir(parents=True, exist_ok=True)
  with locked(folder):
    store.pull(folder, checkpoints)
  if not may_be_new and not (folder / "run.json").exists():
    raise UsageError(f"{url}: contains no run; give the workdir of a run")
  return folder


@contextlib.contextmanager
def mirrored(url: str, is_chief: bool) -> Iterator[pathlib.Path]:
  """Yields a new folder with a copy of a run, for training; its changes are sent to the URL.

  The chief's copy has everything, the other workers' only the newest checkpoint. The chief owns the
  URL. Runs in the body send their changes with a `Mirror`; the end of the body sends the rest, such
  as the traceback of an error, and removes the folder.

  Raises:
    UsageError: the store cannot be used, or another process owns the workdir.
    RunFailed: the end of the run could not be uploaded; the folder is kept.
  """
  # It needs TensorFlow, but reading a copy does not.
  from replicator.tools.storage.mirror import Mirror
  from replicator.training.callbacks.callback import installed
  store = ObjectStore(url)
  with _scratch() as root:
    folder = root / store.url.rpartition("/")[2]
    folder.mkdir()
    mirror = Mirror(store, folder, root / _BEHIND, is_chief)
    try:
      mirror.open()
      with installed([mirror]), places.refreshed_by(folder, mirror.refresh):
        yield folder
    except Exception as error:
      for each in chain_of(error):  # Users know the URL, not the folder.
        each.args = tuple(arg.replace(str(folder), store.url) if isinstance(arg, str) else arg
                          for arg in each.args)
      mirror.close(error)
      raise
    else:
      mirror.close()
    finally:
      mirror.release()


@contextlib.contextmanager
def locked(folder: pathlib.Path, wait: bool = True) -> Iterator[None]:
  """Locks the folder for the body; without `wait`, raises an OSError if it cannot be locked now."""
  descriptor = os.open(folder, os.O_RDONLY)
  try:
    try:
      fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
      if not wait:
        raise
      # The file system has no locks.
    yield
  finally:
    os.close(descriptor)


@contextlib.contextmanager
def _scratch() -> Iterator[pathlib.Path]:
  """Yields a new folder, then removes it unless it is `_BEHIND`; also cleans up after killed runs.
  """
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
