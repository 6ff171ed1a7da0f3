"""Finds workdirs by name: a folder, or the URL of an object store, which a tool opens."""

import contextlib
import os
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any, Literal

from replicator.errors import UsageError

Which = Literal["none", "newest", "all"]
"""Which checkpoints to get; 'newest' is the newest one that is not corrupt."""

_SCHEME = re.compile(r"[A-Za-z][\w+.:-]+:/")
_refreshers: dict[pathlib.Path, Callable[[], None]] = {}  # By the folder of a run.


def _no_tool() -> Any:
  raise UsageError("this is a URL, which only replicator can open; import replicator first")


open_tool: Callable[[], Any] = _no_tool
"""Returns `tools.storage.remote`, which opens URLs; `replicator/__init__.py` sets it."""


def is_url(name: str | os.PathLike) -> bool:
  """Returns whether a name is a URL; raises a UsageError for a URL that has lost a slash."""
  text = os.fspath(name)
  found = _SCHEME.match(text)
  if found and text[found.end():found.end() + 1] != "/":
    raise UsageError(f"{text}: write {found[0]}/... as a string: a pathlib.Path loses a slash")
  return bool(found)


def refuse_url(name: str | os.PathLike, flag: str, remedy: str) -> None:
  """Raises a UsageError if a flag's value is a URL, which would create a local folder `s3:`."""
  if _SCHEME.match(os.fspath(name)):
    raise UsageError(f"{flag}={os.fspath(name)}: must be a local path; {remedy}")


def folder_of(run: str | os.PathLike, checkpoints: Which = "none", may_be_new: bool = False
              ) -> pathlib.Path:
  """Returns the folder of a workdir, for reading; for a URL, makes or updates a copy.

  Raises a UsageError if the URL cannot be read, or if it holds no run, unless `may_be_new`.
  """
  if is_url(run):
    return open_tool().copy_of(os.fspath(run), checkpoints, may_be_new)
  return pathlib.Path(run).expanduser()


@contextlib.contextmanager
def local(workdir: str, is_chief: bool) -> Iterator[pathlib.Path]:
  """Yields the folder to train in: `workdir`, or for a URL, a folder that is mirrored to it.

  Raises a UsageError if the URL cannot be used.
  """
  if not is_url(workdir):
    yield pathlib.Path(workdir)
    return
  with open_tool().mirrored(workdir, is_chief) as folder:
    yield folder


@contextlib.contextmanager
def refreshed_by(folder: pathlib.Path, refresh: Callable[[], None]) -> Iterator[None]:
  """Registers `refresh`, which syncs the checkpoints of the run in `folder`, for the body."""
  _refreshers[folder] = refresh
  try:
    yield
  finally:
    del _refreshers[folder]


def refresh(folder: pathlib.Path) -> None:
  """Syncs the checkpoints in `folder` with the URL that it mirrors, if any."""
  if folder in _refreshers:
    _refreshers[folder]()
