"""Workdirs in an object store, which a run keeps up to date and any machine can read.

Each object is written atomically, but a set of objects is not, and objects cannot be renamed. So a
checkpoint exists if its manifest does: the manifest is written last, and removed first. All other
files that a reader finds are from the time of that checkpoint or later, as after a crash.
"""

import contextlib
import json
import logging
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Collection, Iterable
from typing import Any

from replicator import atomic
from replicator.errors import OneLineError, UsageError, first_line
from replicator.training.workdir.places import Which
from replicator.training.workdir.set_aside import FOLDER

States = dict[str, tuple[int, int]]  # By file name, the modification time and the size.
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs"}  # By protocol.
_INDEX = ".mirror.json"  # In a copy: the version of each file in the store.
_CHECKPOINT = re.compile(r"(checkpoints/step-(\d{8,}))/.+")
_ASIDE = f"{FOLDER}/"  # Separate workdirs, which are never read with the run.
_SIGNS = ("size", "ETag", "etag", "md5Hash", "mtime", "LastModified", "updated", "created")


class ObjectStore:
  """The objects under a URL, as a workdir; raises a UsageError if fsspec cannot open the URL."""

  def __init__(self, url: str):
    self.url = url.rstrip("/")
    protocol = url.partition("://")[0]
    if protocol == "memory":
      raise UsageError(f"{url}: would be lost when this process ends; use a folder, s3://... or "
                       "gs://...")
    options: dict[str, Any] = {"auto_mkdir": True} if protocol in ("file", "local") else {}
    try:
      import fsspec
      # Changes by other processes must be visible.
      self._fs, self._root = fsspec.url_to_fs(self.url, use_listings_cache=False, **options)
    except ImportError as error:
      extra = _EXTRAS.get(protocol)
      package = f"pip install 'replicator[{extra}]'" if extra else f"({error})"
      raise UsageError(f"{url}: needs a package: {package}") from error
    except Exception as error:
      raise UsageError(f"{url}: cannot be opened ({first_line(error)})") from error
    log = logging.getLogger(type(self._fs).__module__.partition(".")[0])
    log.setLevel(log.level or logging.CRITICAL)  # It also raises what it logs.
    self._there: set[str] = set()  # Objects that this process found in the store, or put there.
    self._pushed: States = {}  # The state of each local file when it was put.
    self._sums: dict[str, dict[str, str]] = {}  # Checksums in the store.

  # ---- One object -------------------------------------------------------------------------------

  def create(self, name: str, content: bytes) -> bool:
    """Creates an object by a conditional write; returns whether it was created."""
    try:
      self._fs.pipe_file(self._at(name), content, mode="create")
      return True
    except FileExistsError:
      return False

  def read(self, name: str) -> bytes:
    """Returns the content of an object; empty if it does not exist."""
    try:
      return self._fs.cat_file(self._at(name))
    except FileNotFoundError:
      return b""

  def write(self, name: str, content: bytes) -> None:
    """Replaces an object."""
    self._fs.pipe_file(self._at(name), content)

  def remove(self, name: str) -> None:
    """Removes an object if it exists."""
    with contextlib.suppress(FileNotFoundError):
      self._fs.rm_file(self._at(name))
    self._there.discard(name)

  def _at(self, name: str) -> str:
    return f"{self._root.rstrip('/')}/{name}"

  # ---- Reading ----------------------------------------------------------------------------------

  def pull(self, folder: pathlib.Path, checkpoints: Which = "all", logs: bool = True) -> None:
    """Makes `folder` equal to the store; without `logs`, only its checkpoints.

    Skips checkpoints without a manifest, but not corrupt ones, which are reported on restore.
    Raises a UsageError if the store cannot be read, or holds files that are not from a run.
    """
    try:
      self._pull(folder, checkpoints, logs)
    except OneLineError:
      raise
    except Exception as error:
      raise UsageError(f"{self.url}: cannot be read ({reason(error)})") from error

  def _pull(self, folder: pathlib.Path, checkpoints: Which, logs: bool) -> None:
    for leftover in folder.glob(".tmp-*"):
      shutil.rmtree(leftover)
    there = self._list()
    if there and "run.json" not in there and not folder.joinpath("run.json").exists():
      raise UsageError(f"{self.url}: contains other files, such as {min(there)}, but no run; "
                       "use the URL of a run, or a new one")
    index = folder / _INDEX
    known = json.loads(index.read_text()) if index.exists() else {}  # The files that are here.
    if logs:
      wanted = {name for name in there if not name.startswith("checkpoints/")}
      changed = [name for name in wanted
                 if known.get(name) != there[name] or not (folder / name).is_file()]
      self._get(changed, folder)
      known.update((name, there[name]) for name in changed)
      for name in _files(folder):
        if name not in wanted and not name.startswith("checkpoints/"):
          (folder / name).unlink()
    sets = _checkpoints(there)
    for place in {name.rpartition("/")[0] for name in _files(folder) if _CHECKPOINT.match(name)}:
      if place not in sets:
        atomic.remove(folder / place)
    for place in () if checkpoints == "none" else reversed(sets):
      manifest = f"{place}/{atomic.MANIFEST}"
      if known.get(manifest) != there[manifest] or not (folder / place).is_dir():
        self._get_checkpoint(place, sets[place], folder)
        known[manifest] = there[manifest]
      if checkpoints == "newest" and atomic.is_good(folder / place):
        break
    atomic.write_whole(index, json.dumps(known))
    self._there = set(there)
    self._pushed = _files(folder)
    self._sums = {place: atomic.checksums(folder / place) for place in list(sets)[-1:]
                  if atomic.is_good(folder / place)}  # It may be saved again unchanged.

  def _get_checkpoint(self, place: str, names: Collection[str], folder: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".tmp-", dir=folder) as temporary:
      self._get(names, pathlib.Path(temporary))
      atomic.remove(folder / place)
      (folder / place).parent.mkdir(exist_ok=True)
      (pathlib.Path(temporary) / place).rename(folder / place)

  def _get(self, names: Collection[str], folder: pathlib.Path) -> None:
    if names:
      self._fs.get([self._at(name) for name in names], [str(folder / name) for name in names])

  def _list(self) -> dict[str, str]:
    """Returns the run's visible objects, each with a text that changes with its content."""
    found = self._fs.find(self._root, detail=True)
    return {name: json.dumps([str(info.get(sign)) for sign in _SIGNS])
            for path, info in found.items() if (name := path.removeprefix(self._root).strip("/"))
            and not _is_hidden(name) and not name.startswith(_ASIDE)
            and info.get("type") == "file" and not path.endswith("/")}

  # ---- Writing ----------------------------------------------------------------------------------

  def push(self, folder: pathlib.Path) -> None:
    """Updates the store from `folder`; only one process at a time may do so.

    Removes only objects known to belong to the run: those it pulled or put there. After any error,
    every checkpoint with a manifest is still complete, and another push continues.
    """
    local = _files(folder)
    changed = [name for name, state in local.items() if self._pushed.get(name) != state]
    sets = _checkpoints(local)
    logs = [name for name in changed if not name.startswith("checkpoints/")]
    self._put([name for name in logs if name.startswith(_ASIDE)], folder, local)
    old = {found[1] for name in self._there if (found := _CHECKPOINT.match(name))} - sets.keys()
    newest = max(map(_step, sets), default=-1)
    for place in old:
      if _step(place) > newest:  # Left over from a rollback: nothing must resume from it.
        self._remove_checkpoint(place)
    self._put([name for name in logs if name == "run.json"], folder, local)  # Marks a run.
    self._put([name for name in logs if name != "run.json" and not name.startswith(_ASIDE)],
              folder, local)
    for place in sets:
      if f"{place}/{atomic.MANIFEST}" in changed:
        self._put_checkpoint(place, folder, local)
    for place in old:
      self._remove_checkpoint(place)
    for name in self._there - local.keys():
      self.remove(name)

  def add(self, folder: pathlib.Path, beginning: str) -> None:
    """Puts files whose names start with `beginning`; removes nothing, so any worker may call it."""
    local = _files(folder)
    self._put([name for name in local if name.startswith(beginning)], folder, local)

  def _put_checkpoint(self, place: str, folder: pathlib.Path, states: States) -> None:
    manifest = f"{place}/{atomic.MANIFEST}"
    sums = atomic.checksums(folder / place)
    if manifest not in self._there or sums != self._sums.get(place):
      self._remove_checkpoint(place)
      self._put([f"{place}/{name}" for name in sums], folder, states)
    self._put([manifest], folder, states)  # It alone may have changed, with the same values.
    self._sums[place] = sums

  def _remove_checkpoint(self, place: str) -> None:
    names = {name for name in self._there if name.startswith(f"{place}/")}
    for name in sorted(names, key=lambda name: not name.endswith(atomic.MANIFEST)):
      self.remove(name)

  def _put(self, names: Collection[str], folder: pathlib.Path, states: States) -> None:
    self._there.update(names)  # Even if this fails, some may be there.
    if names:
      self._fs.put([str(folder / name) for name in names], [self._at(name) for name in names])
    self._pushed.update((name, states[name]) for name in names)


def reason(error: Exception) -> str:
  """Formats an error's type and first line: `ConnectionError: no route to host`."""
  return f"{type(error).__name__}: {first_line(error)}"


def _is_hidden(name: str) -> bool:
  return any(part.startswith(".") for part in name.split("/"))


def _files(folder: pathlib.Path) -> States:
  """Returns the files of a workdir, except hidden ones."""
  found = {}
  for place, folders, names in os.walk(folder):
    folders[:] = [name for name in folders if not _is_hidden(name)]
    for path in (pathlib.Path(place, name) for name in names if not _is_hidden(name)):
      with contextlib.suppress(FileNotFoundError):
        state = path.stat()
        found[path.relative_to(folder).as_posix()] = state.st_mtime_ns, state.st_size
  return found


def _checkpoints(names: Iterable[str]) -> dict[str, list[str]]:
  """Returns the files of each checkpoint that has a manifest, by folder, in step order."""
  sets: dict[str, list[str]] = {}
  for name in names:
    if found := _CHECKPOINT.match(name):
      sets.setdefault(found[1], []).append(name)
  return {place: sets[place] for place in sorted(sets, key=_step)
          if f"{place}/{atomic.MANIFEST}" in sets[place]}


def _step(place: str) -> int:
  return int(place.rpartition("-")[2])
