"""Workdirs by name: a folder, or the URL of an object store, which a tool opens."""

import contextlib
import os
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any, Literal

from replicator.errors import UsageError

Which = Literal["none", "newest", "all"]
"""The checkpoints that are wanted: 'newest' stands for the newest one that is not corrupt."""

_SCHEME = re.compile(r"[A-Za-z][\w+.:-]+:/")
_refreshers: dict[pathlib.Path, Callable[[], None]] = {}  # By the folder of a run.


def _no_tool() -> Any:
  raise UsageError("this is a URL, and nothing opens URLs; import replicator first")


open_tool: Callable[[], Any] = _no_tool
"""Returns `tools.storage.remote`, which opens URLs; `replicator/__init__.py` sets it."""


def is_url(name: str | os.PathLike) -> bool:
  """Whether a name is a URL, and not of a file; UsageError: it is one that has lost a slash."""
  text = os.fspath(name)
  found = _SCHEME.match(text)
  if found and text[found.end():found.end() + 1] != "/":
    raise UsageError(f"{text}: write {found[0]}/..., as a string: a pathlib.Path loses a slash")
  return bool(found)


def refuse_url(name: str | os.PathLike, flag: str, remedy: str) -> None:
  """Raises a UsageError if the value of a flag is a URL, which would name a folder `s3:` here."""
  if _SCHEME.match(os.fspath(name)):
    raise UsageError(f"{flag}={os.fspath(name)}: must be on this machine; {remedy}")


def folder_of(run: str | os.PathLike, checkpoints: Which = "none", may_be_new: bool = False
              ) -> pathlib.Path:
  """The folder of a workdir: a copy if `run` is a URL, made or brought up to date.

  It is for reading. Raises a UsageError if the URL cannot be read, or holds no run, unless it
  `may_be_new`.
  """
  if is_url(run):
    return open_tool().copy_of(os.fspath(run), checkpoints, may_be_new)
  return pathlib.Path(run).expanduser()


@contextlib.contextmanager
def local(workdir: str, is_chief: bool) -> Iterator[pathlib.Path]:
  """The folder where this process trains: `workdir`, or for a URL a folder that is mirrored there.

  Raises a UsageError if the URL cannot be used.
  """
  if not is_url(workdir):
    yield pathlib.Path(workdir)
    return
  with open_tool().mirrored(workdir, is_chief) as folder:
    yield folder


@contextlib.contextmanager
def refreshed_by(folder: pathlib.Path, refresh: Callable[[], None]) -> Iterator[None]:
  """In the body, `refresh()` brings the checkpoints of the run in `folder` up to date."""
  _refreshers[folder] = refresh
  try:
    yield
  finally:
    del _refreshers[folder]


def refresh(folder: pathlib.Path) -> None:
  """Gets the checkpoints that the chief has saved meanwhile, where a worker has a copy."""
  if folder in _refreshers:
    _refreshers[folder]()
