"""A ZIP archive of image files, read where it lies."""

import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import IO

import gin
import numpy as np

from models.vision.files.image_folder import SUFFIXES, is_image, report_left_out
from models.vision.images import labels as labels_lib
from models.vision.images.encoded_images import MEMORY_LIMIT, DecodedImages, EncodedImages
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


class ZippedImages(EncodedImages):
  """The images of a ZIP archive, as `EncodedImages`; only their names and places are in memory."""

  def __init__(self, path: str, needs_classes: bool = True) -> None:
    """Reads the directory of the archive; raises a UsageError as `ImageZip` says.

    Without `needs_classes`, they are all images at any depth, in the order of their whole names;
    see `labels.of_layout`.
    """
    self.path = str(path)
    self._files = [os.path.expanduser(self.path)]
    found, others, listed = _directory(self.path)
    report_left_out(self.path, others, "files that are no images")
    found.sort(key=lambda info: info.filename.split("/") if needs_classes else info.filename)
    names = [info.filename for info in found]
    if listed is None and len({name.partition("/")[0] for name in names}) == 1 and all(
        name.count("/") > 1 for name in names):
      names = [name.partition("/")[2] for name in names]  # A folder is around all classes.
    kept, (self.labels, self.class_names) = labels_lib.of_layout(
        names, listed, f"{self.path}: {labels_lib.JSON}", needs_classes)
    if not kept:
      raise UsageError(f"ImageZip.path = {self.path!r}: has neither {labels_lib.JSON} nor a folder "
                       "for each class, such as cats/001.jpg and dogs/001.jpg; images without "
                       "classes may all be in one folder, such as all/")
    left = np.setdiff1d(np.arange(len(names)), kept)
    report_left_out(self.path, [PurePosixPath(names[i]) for i in left], "images in no class")
    found = [found[i] for i in kept]
    self._names = np.array([info.filename.encode() for info in found], np.bytes_)
    self._entries = np.array([(info.header_offset, info.compress_size, info.CRC,
                               info.compress_type) for info in found], np.int64)

  def name(self, index: int) -> str:
    """The path of the archive, and the name within it."""
    return f"{self.path}: {self._names[index].decode()}"

  def read(self, index: int) -> bytes:
    """The content of the file; raises a ValueError if its checksum is wrong."""
    header, size, crc32, compression = map(int, self._entries[index])
    with open(self._files[0], "rb") as file:
      file.seek(content_offset(file, header))
      content = file.read(size)
    if compression == zipfile.ZIP_DEFLATED:
      content = zlib.decompress(content, -zlib.MAX_WBITS)
    if zlib.crc32(content) != crc32:
      raise ValueError("its checksum is wrong: the archive is torn, or it has changed")
    return content

  def facts(self) -> Sequence[np.ndarray]:
    """The names within the archive, and the checksums of the files."""
    return self._names, self._entries[:, 2]


def content_offset(file: IO[bytes], header_offset: int) -> int:
  """Where the content of a file of an archive begins, by where its header does."""
  file.seek(header_offset)
  header = file.read(_HEADER_BYTES)
  lengths = np.frombuffer(header[-4:], "<u2") if header[:4] == b"PK\3\4" else ()
  return header_offset + _HEADER_BYTES + int(sum(lengths))


def _directory(path: str
               ) -> tuple[list[zipfile.ZipInfo], list[PurePosixPath], bytes | None]:
  """The images in an archive, the names of its other files, and the content of `dataset.json`."""
  setting, file = f"ImageZip.path = {path!r}", Path(path).expanduser()
  if file.is_dir():
    raise UsageError(f"{setting}: is a folder; use ImageFolder, or write the path of a ZIP archive")
  if not file.exists():
    raise UsageError(f"{setting}: no such file; write the path of a ZIP archive of images")
  try:
    with zipfile.ZipFile(file) as archive:
      names = {info: PurePosixPath(info.filename) for info in archive.infolist()
               if not info.is_dir()}
      found = [info for info, name in names.items() if is_image(name)]
      listed = archive.read(labels_lib.JSON) if labels_lib.JSON in archive.namelist() else None
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
  return found, [name for name in names.values() if not is_image(name)], listed
