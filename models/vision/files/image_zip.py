"""A ZIP archive of image files, read where it lies."""

import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

import gin
import numpy as np
from absl import logging

from models.vision.files.image_folder import SUFFIXES
from models.vision.images import labels as labels_lib
from models.vision.images.encoded_images import MEMORY_LIMIT, DecodedImages
from replicator import UsageError

_READABLE = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_HEADER_BYTES = 30  # What stands before the name of a file, and its last two fields.


@gin.configurable
class ImageZip(DecodedImages):
  """Images of a ZIP archive, center-cropped and resized: an `ImageSource` of [r, r, 3].

  If the archive has a `dataset.json`, its labels are those of the images, as in StyleGAN's data
  sets: `{"labels": [["00000/img00000000.png", 6], ...]}`, or null, where all images are of one
  class. Otherwise the archive has the layout of an `ImageFolder`, with or without one folder around
  all classes, and gives the same examples. Images are in the order of their names.
  """

  def __init__(self, path: str, resolution: int, on_error: str = "raise",
               memory_limit: int = MEMORY_LIMIT) -> None:
    """Opens the archive; the arguments are those of `ImageFolder`.

    Raises:
      UsageError: `path` is no ZIP archive of images, or a truncated one; an image has no label; an
        image cannot be decoded; or an argument has a wrong value.
    """
    super().__init__(ZippedImages(path), resolution, on_error, memory_limit)
    logging.info("ImageZip found %d images of %d classes in %s",
                 self.size, self.num_classes, path)


class ZippedImages:
  """The images of a ZIP archive, as `EncodedImages`; only their names and places are in memory."""

  def __init__(self, path: str, needs_classes: bool = True) -> None:
    """Reads the directory of the archive; raises a UsageError as `ImageZip` says.

    Without `needs_classes`, they are all images at any depth, with the labels of `labels.if_any`,
    in the order of their whole names.
    """
    self.path = str(path)
    self._file = os.path.expanduser(self.path)
    names: Sequence[str]
    entries: Sequence[_Entry]
    names, entries, labels = _directory(self.path)
    if not needs_classes:
      names, entries = zip(*sorted(zip(names, entries, strict=True)), strict=True)
      self.labels, self.class_names = labels_lib.if_any(labels, names)
    elif labels is not None:
      found = labels_lib.from_json(labels, names, f"{self.path}: {labels_lib.JSON}")
      self.labels, self.class_names = found or (np.zeros(len(names), np.int32), ("all",))
    else:
      names, entries, inner = _in_folders(names, entries, self.path)
      self.labels, self.class_names = labels_lib.from_folders(inner)
    self._names = np.array([name.encode() for name in names], np.bytes_)
    self._entries = np.array(entries, np.int64)

  def name(self, index: int) -> str:
    """The path of the archive, and the name within it."""
    return f"{self.path}: {self._names[index].decode()}"

  def read(self, index: int) -> bytes:
    """The content of the file; raises a ValueError if its checksum is wrong."""
    entry = _Entry(*map(int, self._entries[index]))
    with open(self._file, "rb") as file:
      file.seek(content_offset(file, entry.offset))
      content = file.read(entry.size)
    if entry.compression == zipfile.ZIP_DEFLATED:
      content = zlib.decompress(content, -zlib.MAX_WBITS)
    if zlib.crc32(content) != entry.crc32:
      raise ValueError("its checksum is wrong: the archive is torn, or it has changed")
    return content

  def files(self) -> list[str]:
    """The archive."""
    return [self._file]


def content_offset(file: IO[bytes], header_offset: int) -> int:
  """Where the content of a file of an archive begins, by where its header does."""
  file.seek(header_offset)
  header = file.read(_HEADER_BYTES)
  lengths = np.frombuffer(header[-4:], "<u2") if header[:4] == b"PK\3\4" else ()
  return header_offset + _HEADER_BYTES + int(sum(lengths))


class _Entry(NamedTuple):
  """Where a file is in an archive."""

  offset: int
  size: int
  crc32: int
  compression: int


def _directory(path: str) -> tuple[list[str], list[_Entry], bytes | None]:
  """The names of the images in order, their entries, and the content of `dataset.json`."""
  setting, file = f"ImageZip.path = {path!r}", Path(path).expanduser()
  if file.is_dir():
    raise UsageError(f"{setting}: is a folder; use ImageFolder, or write the path of a ZIP archive")
  if not file.exists():
    raise UsageError(f"{setting}: no such file; write the path of a ZIP archive of images")
  try:
    with zipfile.ZipFile(file) as archive:
      found = sorted((info for info in archive.infolist() if _is_image(info.filename)),
                     key=lambda info: info.filename.split("/"))
      labels = archive.read(labels_lib.JSON) if labels_lib.JSON in archive.namelist() else None
  except (zipfile.BadZipFile, OSError, EOFError) as error:
    with file.open("rb") as opened:
      is_zip = opened.read(4) == b"PK\3\4"
    what = ("is a truncated ZIP archive, without its end" if is_zip else "is not a ZIP archive")
    raise UsageError(f"{setting}: {what} ({error}); copy it again") from error
  if not found:
    raise UsageError(f"{setting}: has no images (file types: {' '.join(SUFFIXES)})")
  for info in found:
    if info.compress_type not in _READABLE or info.flag_bits & 1:
      raise UsageError(f"{setting}: {info.filename} is encrypted or compressed by an unusual "
                       "method; make the archive again, best with `zip -0`")
  entries = [_Entry(info.header_offset, info.compress_size, info.CRC, info.compress_type)
             for info in found]
  return [info.filename for info in found], entries, labels


def _is_image(name: str) -> bool:
  path = PurePosixPath(name)
  return path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and name[-1] != "/"


def _in_folders(names: Sequence[str], entries: Sequence[_Entry], path: str
                ) -> tuple[list[str], list[_Entry], list[str]]:
  """The images that are in folders of classes, and their names within the folder around these."""
  around = {name.partition("/")[0] for name in names}
  depth = 1 if len(around) == 1 and all(name.count("/") > 1 for name in names) else 0
  inner = ["/".join(name.split("/")[depth:]) for name in names]
  kept = [i for i, name in enumerate(inner) if "/" in name and not name.startswith(".")]
  if not kept:
    raise UsageError(f"ImageZip.path = {path!r}: has neither {labels_lib.JSON} nor a folder for "
                     "each class, such as cats/001.jpg and dogs/001.jpg; images without classes "
                     "may all be in one folder, such as all/")
  return [names[i] for i in kept], [entries[i] for i in kept], [inner[i] for i in kept]
