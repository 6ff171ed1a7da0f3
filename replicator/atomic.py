"""A folder of files that is there whole or not at all, and that tells when it is damaged.

It is written under another name, each file is forced to the disk, and only then does it get its
name, in one operation of the file system. A crash, or a full disk, leaves what was there before.
"""

import errno
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable

MANIFEST = "manifest.json"
_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
_ASIDE = ".tmp-"  # Before the name of a folder that is being written or removed.


class Damaged(Exception):
  """A folder is not what was published; the message says how."""


def publish(folder: pathlib.Path, write: Callable[[pathlib.Path], None], facts: dict) -> None:
  """Makes `folder`, in place of an earlier one, of the files that `write(temporary)` writes.

  Args:
    folder: appears when all is on the disk.
    write: is called with the folder to write the files into.
    facts: JSON-able; kept in the manifest, with the size and the SHA-256 of each file.

  Raises:
    OSError: or what `write` raises; nothing is left behind then.
  """
  temporary = folder.with_name(f"{_ASIDE}{folder.name}")
  remove(temporary)
  try:
    temporary.mkdir(parents=True)
    write(temporary)
    files = {path.name: _seal(path) for path in sorted(temporary.iterdir())}
    manifest = {"facts": facts, "files": files}
    sealed = {**manifest, "sha256": _digest(manifest)}
    (temporary / MANIFEST).write_text(json.dumps(sealed, indent=1) + "\n")
    _to_disk(temporary / MANIFEST)
    _to_disk(temporary)
    remove(folder)
    temporary.rename(folder)
  except BaseException:
    shutil.rmtree(temporary, ignore_errors=True)
    raise
  _to_disk(folder.parent)


def write_whole(path: pathlib.Path, content: str | bytes) -> None:
  """Replaces a file; a crash leaves the old one or the new one, never a part."""
  temporary = path.with_name(f".{path.name}.{os.getpid()}")
  try:
    with temporary.open("wb") as file:
      file.write(content.encode() if isinstance(content, str) else content)
      file.flush()
      os.fsync(file.fileno())
    temporary.replace(path)
  except BaseException:
    temporary.unlink(missing_ok=True)
    raise


def check(folder: pathlib.Path) -> dict:
  """Reads every file of a published folder; returns its facts.

  Raises:
    Damaged: one is missing, or another than was published.
  """
  manifest = _manifest(folder)
  for name, expected in manifest["files"].items():
    path = folder / name
    if not path.exists():
      raise Damaged(f"{name} is missing")
    if path.stat().st_size != expected["bytes"]:
      raise Damaged(f"{name} has {path.stat().st_size} bytes, not {expected['bytes']}")
    if _sha256(path) != expected["sha256"]:
      raise Damaged(f"the checksum of {name} is wrong")
  return manifest["facts"]


def facts_of(folder: pathlib.Path) -> dict:
  """The facts of a published folder, whose files may be damaged.

  Raises:
    Damaged: the manifest is.
  """
  return _manifest(folder)["facts"]


def disk_fault(error: Exception) -> str | None:
  """In words what is wrong with the disk, if an error of Python or TensorFlow tells that."""
  return next((words for words in map(os.strerror, _FAULTS) if words in str(error)), None)


def remove(folder: pathlib.Path) -> None:
  """Removes a published folder, if it is there, whole or not at all."""
  if folder.exists():
    aside = folder.with_name(f"{_ASIDE}old-{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)
    shutil.rmtree(aside)


def clean(parent: pathlib.Path) -> None:
  """Removes what a crash left behind among the published folders of `parent`."""
  for leftover in parent.glob(f"{_ASIDE}*"):
    shutil.rmtree(leftover)


def _manifest(folder: pathlib.Path) -> dict:
  try:
    manifest = json.loads((folder / MANIFEST).read_text())
    digest = manifest.pop("sha256")
    if digest == _digest(manifest):
      return manifest
  except FileNotFoundError:
    raise Damaged(f"{MANIFEST} is missing") from None
  except (ValueError, KeyError, AttributeError, OSError):  # No JSON, or of another form.
    pass
  raise Damaged(f"the checksum of {MANIFEST} is wrong")


def _digest(manifest: dict) -> str:
  return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _seal(path: pathlib.Path) -> dict:
  _to_disk(path)
  return {"bytes": path.stat().st_size, "sha256": _sha256(path)}


def _sha256(path: pathlib.Path) -> str:
  digest = hashlib.sha256()
  with path.open("rb") as file:
    while block := file.read(1 << 20):
      digest.update(block)
  return digest.hexdigest()


def _to_disk(path: pathlib.Path) -> None:
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
