"""Writes folders and files completely or not at all.

A published folder is written under a temporary name; after each of its files is flushed to disk, it
is renamed. A folder that it replaces is set aside under a different name until the new one is on
disk. So a crash or a full disk leaves the old folder or the new one, never a part of either. A
manifest holds a checksum of each file, so that a reader detects a corrupt folder.
"""

import contextlib
import errno
import hashlib
import json
import os
import pathlib
import secrets
import shutil
from collections.abc import Callable, Iterator

MANIFEST = "manifest.json"
_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
_TEMPORARY = ".tmp-"  # Prefix of a folder that is being written or removed.
_REPLACED = ".old-"   # Prefix of a complete folder while a new one replaces it.


class Corrupt(Exception):
  """A folder that differs from what was published; the message says how."""


def publish(folder: pathlib.Path, write: Callable[[pathlib.Path], None], facts: dict) -> None:
  """Publishes the files that `write` makes as `folder`; replaces an earlier folder of that name.

  `write` gets a temporary folder; `folder` appears when all of its content is on disk. The manifest
  stores the `facts`, which are JSON-able.

  Raises:
    OSError: the disk is full or fails. After any error, an earlier folder is unchanged.
  """
  temporary, replaced = _beside(folder, _TEMPORARY), _beside(folder, _REPLACED)
  _put_back(replaced)
  for leftover in (replaced, temporary):
    _discard(leftover)
  try:
    temporary.mkdir(parents=True)
    write(temporary)
    files = {path.name: _seal(path) for path in sorted(temporary.iterdir())}
    manifest = {"facts": facts, "files": files}
    sealed = {**manifest, "sha256": _digest(manifest)}
    (temporary / MANIFEST).write_text(json.dumps(sealed, indent=1) + "\n")
    to_disk(temporary / MANIFEST)
    to_disk(temporary)
    if folder.exists():
      folder.rename(replaced)
    temporary.rename(folder)
  except BaseException:
    shutil.rmtree(temporary, ignore_errors=True)
    with contextlib.suppress(OSError):
      _put_back(replaced)
    raise
  to_disk(folder.parent)
  _discard(replaced)


def write_whole(path: pathlib.Path, content: str | bytes) -> None:
  """Replaces a file; a crash leaves the old or the new one, never a part."""
  # Processes on different machines may write to a shared folder with the same process ID.
  temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
  try:
    with temporary.open("wb") as file:
      file.write(content.encode() if isinstance(content, str) else content)
      file.flush()
      os.fsync(file.fileno())
    temporary.replace(path)
  except BaseException:
    temporary.unlink(missing_ok=True)
    raise


@contextlib.contextmanager
def created(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields a temporary path next to `path`, where the body makes a new file or folder.

  It is renamed to `path` when the body ends. If the body raises, it is removed; if the process is
  killed, the temporary one remains.

  Raises:
    FileExistsError: `path` already exists.
  """
  if path.exists():
    raise FileExistsError(f"{path} already exists")
  path.parent.mkdir(parents=True, exist_ok=True)
  temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
  try:
    yield temporary
    if path.exists():  # Another process was faster.
      raise FileExistsError(f"{path} already exists")
    temporary.rename(path)
  finally:
    if temporary.is_dir():
      shutil.rmtree(temporary, ignore_errors=True)
    else:
      temporary.unlink(missing_ok=True)


def check(folder: pathlib.Path) -> dict:
  """Checks every file of a published folder, and returns its facts; raises `Corrupt`."""
  manifest = _manifest(folder)
  for name, expected in manifest["files"].items():
    path = folder / name
    if not path.exists():
      raise Corrupt(f"{name} is missing")
    if path.stat().st_size != expected["bytes"]:
      raise Corrupt(f"{name} has {path.stat().st_size} bytes, not {expected['bytes']}")
    if _sha256(path) != expected["sha256"]:
      raise Corrupt(f"the checksum of {name} is wrong")
  return manifest["facts"]


def is_good(folder: pathlib.Path) -> bool:
  """Returns whether a published folder exists and is intact; reads every file."""
  try:
    check(folder)
    return True
  except (Corrupt, OSError):
    return False


def facts_of(folder: pathlib.Path) -> dict:
  """Returns the facts of a published folder; raises `Corrupt`, but does not check other files."""
  return _manifest(folder)["facts"]


def checksums(folder: pathlib.Path) -> dict[str, str]:
  """Returns the SHA-256 of each file of a published folder from its manifest; raises `Corrupt`."""
  return {name: file["sha256"] for name, file in _manifest(folder)["files"].items()}


def published(parent: pathlib.Path) -> dict[str, pathlib.Path]:
  """Returns the paths of the published folders in `parent`, by name; changes nothing.

  After an interrupted replacement, the path is where the earlier folder was set aside.
  """
  aside = {path.name.removeprefix(_REPLACED): path for path in parent.glob(f"{_REPLACED}*")}
  return {**aside, **{path.name: path for path in parent.glob("[!.]*")}}


def disk_fault(error: Exception) -> str | None:
  """Returns the disk fault that an error of Python or TensorFlow names, if any."""
  return next((words for words in map(os.strerror, _FAULTS) if words in str(error)), None)


def remove(folder: pathlib.Path) -> None:
  """Removes a published folder if it exists; a crash leaves all or nothing of it."""
  _discard(_beside(folder, _REPLACED))
  _discard(folder)


def repair(parent: pathlib.Path) -> None:
  """Restores folders after a crash; several processes may call it, as long as none publishes."""
  for replaced in parent.glob(f"{_REPLACED}*"):
    _put_back(replaced)


def clean(parent: pathlib.Path) -> None:
  """Repairs `parent`, and removes everything else that a crash left in it."""
  repair(parent)
  for leftover in parent.glob(f"{_REPLACED}*"):
    _discard(leftover)
  for leftover in parent.glob(f"{_TEMPORARY}*"):
    shutil.rmtree(leftover)


def _beside(folder: pathlib.Path, prefix: str) -> pathlib.Path:
  return folder.with_name(f"{prefix}{folder.name}")


def _put_back(replaced: pathlib.Path) -> None:
  folder = replaced.with_name(replaced.name.removeprefix(_REPLACED))
  if not folder.exists():
    with contextlib.suppress(FileNotFoundError):  # A different process was faster, or none exists.
      replaced.rename(folder)


def _discard(folder: pathlib.Path) -> None:
  """Renames a folder and removes it, so that the name never has an incomplete folder."""
  if folder.exists():
    temporary = _beside(folder, f"{_TEMPORARY}old-")
    shutil.rmtree(temporary, ignore_errors=True)
    folder.rename(temporary)
    shutil.rmtree(temporary)


def _manifest(folder: pathlib.Path) -> dict:
  try:
    manifest = json.loads((folder / MANIFEST).read_text())
    digest = manifest.pop("sha256")
    if digest == _digest(manifest):
      return manifest
  except FileNotFoundError:
    raise Corrupt(f"{MANIFEST} is missing") from None
  except (ValueError, KeyError, AttributeError, OSError):  # Not JSON, or not a manifest.
    pass
  raise Corrupt(f"the checksum of {MANIFEST} is wrong")


def _digest(manifest: dict) -> str:
  return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _seal(path: pathlib.Path) -> dict:
  to_disk(path)
  return {"bytes": path.stat().st_size, "sha256": _sha256(path)}


def _sha256(path: pathlib.Path) -> str:
  digest = hashlib.sha256()
  with path.open("rb") as file:
    while block := file.read(1 << 20):
      digest.update(block)
  return digest.hexdigest()


def to_disk(path: pathlib.Path) -> None:
  """Syncs a file, or the names in a folder, to disk; raises an OSError if that fails."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
