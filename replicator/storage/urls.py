"""Workdirs by name: a folder, or a URL of an object store, of which a copy is read."""

import contextlib
import fcntl
import os
import pathlib
import re
from collections.abc import Iterator

from replicator.errors import UsageError
from replicator.storage.mirror import Mirror, Which

CACHE = pathlib.Path("~/.cache/replicator/runs")
"""The copies that `folder_of` makes."""

_SCHEME = re.compile(r"[A-Za-z][\w+.:-]+:/")


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
  if not is_url(run):
    return pathlib.Path(run).expanduser()
  mirror = Mirror(os.fspath(run))
  parts = [part for part in re.split(r":+/+|/", mirror.url) if part.strip(".")]
  folder = CACHE.expanduser().joinpath(*parts)
  folder.mkdir(parents=True, exist_ok=True)
  with locked(folder):
    mirror.pull(folder, checkpoints)
  if not may_be_new and not (folder / "run.json").exists():
    raise UsageError(f"{run}: holds no run; write the workdir of a run")
  return folder


@contextlib.contextmanager
def locked(folder: pathlib.Path, wait: bool = True) -> Iterator[None]:
  """Inside, no other process is inside; without `wait` an OSError says that one is, or may be."""
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
