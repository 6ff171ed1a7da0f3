"""A ZIP archive of image files, read where it lies."""

import threading
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from models.vision.files.image_folder import SUFFIXES, is_image
from models.vision.images import labels as labels_lib
from models.vision.images.encoded_images import MEMORY_LIMIT, DecodedImages, EncodedImages
from replicator import UsageError

import gin
import numpy as np


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
  """The images of a ZIP archive, as `EncodedImages`."""

  def __init__(self, path: str, needs_classes: bool = True) -> None:
    """Reads the directory of the archive; raises a UsageError as `ImageZip` says.

    Without `needs_classes`, they are all images at any depth, in the order of their whole names;
    see `labels.of_layout`.
    """
    self.path = str(path)
    setting, file = f"ImageZip.path = {self.path!r}", Path(path).expanduser()
    if file.is_dir():
      raise UsageError(f"{setting}: is a folder; use ImageFolder, or write the path of a ZIP "
                       "archive")
    if not file.exists():
      raise UsageError(f"{setting}: no such file; write the path of a ZIP archive of images")
    self._files = [str(file)]
    self._lock = threading.Lock()
    try:
      self._archive = zipfile.ZipFile(file)
      listed = (self._archive.read(labels_lib.JSON)
                if labels_lib.JSON in self._archive.namelist() else None)
    except (zipfile.BadZipFile, OSError, EOFError) as error:
      raise UsageError(f"{setting}: is not a ZIP archive, or a truncated one ({error}); copy it "
                       "again") from error
    found: list[zipfile.ZipInfo] = []
    others: list[zipfile.ZipInfo] = []
    for info in self._archive.infolist():
      if not info.is_dir():
        (found if is_image(PurePosixPath(info.filename)) else others).append(info)
    labels_lib.report_left_out(self.path, [info.filename for info in others],
                               "files that are no images")
    if not found:
      raise UsageError(f"{setting}: has no images (file types: {' '.join(SUFFIXES)})")
    found.sort(key=lambda info: info.filename.split("/") if needs_classes else info.filename)
    names = [info.filename for info in found]
    if listed is None and len({name.partition("/")[0] for name in names}) == 1 and all(
        name.count("/") > 1 for name in names):
      names = [name.partition("/")[2] for name in names]  # A folder is around all classes.
    kept, (self.labels, self.class_names) = labels_lib.of_layout(
        names, listed, self.path, f"{self.path}: {labels_lib.JSON}", needs_classes)
    self._infos = [found[i] for i in kept]

  def name(self, index: int) -> str:
    """The path of the archive, and the name within it."""
    return f"{self.path}: {self._infos[index].filename}"

  def read(self, index: int) -> bytes:
    """The content of the file; raises an error if its checksum is wrong."""
    with self._lock:  # Python 3.11.2 checks the file's position, which reads in threads share.
      return self._archive.read(self._infos[index])

  def facts(self) -> Sequence[np.ndarray]:
    """The names within the archive, and the checksums of the files."""
    return (np.array([info.filename.encode() for info in self._infos], np.bytes_),
            np.array([info.CRC for info in self._infos], np.int64))
