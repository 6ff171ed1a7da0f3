"""A ZIP archive of image files, read without unpacking."""

import threading
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from models.vision.files import layout, listing
from models.vision.images.encoded_images import MEMORY_LIMIT, DecodedImages, EncodedImages
from replicator import UsageError

import gin
import numpy as np


@gin.configurable
class ImageZip(DecodedImages):
  """Images of a ZIP archive, center-cropped and resized: an `ImageSource` of [r, r, 3].

  A `dataset.json` in a folder that contains all images has their labels, as in StyleGAN's data
  sets: `{"labels": [["00000/img00000000.png", 6], ...]}`, or null if all images are of one class;
  images are then ordered by name. Otherwise the archive has the layout of an `ImageFolder`, with or
  without one folder around all classes, and gives the same examples.
  """

  def __init__(self, path: str, resolution: int, on_error: str = "raise",
               memory_limit: int = MEMORY_LIMIT) -> None:
    """Opens the archive; the arguments are those of `ImageFolder`.

    Raises:
      UsageError: `path` is not a ZIP archive of images, or is truncated; an image has no label; an
        image cannot be decoded; or an argument is invalid.
    """
    super().__init__(ZippedImages(path, skips=on_error == "skip"), resolution, on_error,
                     memory_limit)


class ZippedImages(EncodedImages):
  """The images of a ZIP archive, as `EncodedImages`."""

  def __init__(self, path: str, needs_classes: bool = True, skips: bool = False) -> None:
    """Reads the directory of the archive; raises the UsageErrors of `ImageZip`.

    Without `needs_classes`, it has all images at any depth, sorted by full name; see `layout.find`.
    A class that loses most of its files is logged if `skips`, otherwise rejected.
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
    except (zipfile.BadZipFile, OSError, EOFError) as error:
      raise UsageError(f"{setting}: is not a ZIP archive, or a truncated one ({error}); copy it "
                       "again") from error
    found: list[tuple[str, zipfile.ZipInfo]] = []
    left: dict[str, str] = {}
    others: dict[str, zipfile.ZipInfo] = {}
    for info in self._archive.infolist():
      place = info.filename.replace("\\", "/")  # Some were packed on Windows.
      if place.endswith("/"):
        continue  # A folder.
      # Some programs write `./` in front.
      name = listing.printable(PurePosixPath(place).as_posix())
      if listing.is_image(name):
        found.append((name, info))
      else:
        left[name], others[name] = listing.NO_IMAGE, info
    listing.report(self.path, left)
    if not found:
      raise UsageError(f"{setting}: {listing.none_found(left)}")
    found.sort(key=lambda each: each[0].split("/") if needs_classes else each[0])
    names, content = [name for name, _ in found], None
    listed = layout.list_around(names, others, self.path, needs_classes)
    if listed is not None:
      names, content = layout.beside(listed, names), self._archive.read(others[listed])
    elif len({name.partition("/")[0] for name in names}) == 1 and all(
        name.count("/") > 1 for name in names):
      names = [name.partition("/")[2] for name in names]  # A folder is around all classes.
      left = {name.partition("/")[2]: reason for name, reason in left.items()}
    kept, self.labels, self.class_names, self.unlabeled = layout.find(
        names, content, self.path, f"{self.path}: {listed}", needs_classes)
    if needs_classes and listed is None:
      listing.check_classes(self.path, [names[i] for i in kept], left, skips, "ImageZip.on_error")
    self._infos = [found[i][1] for i in kept]

  def name(self, index: int) -> str:
    """Returns the path of the archive, and the name within it."""
    return f"{self.path}: {listing.printable(self._infos[index].filename)}"

  def read(self, index: int) -> bytes:
    """Returns the content of the file; raises an error if its checksum is wrong."""
    with self._lock:  # Python 3.11.2 checks the file's position, which threads share.
      return self._archive.read(self._infos[index])

  def facts(self) -> Sequence[np.ndarray]:
    """Returns the names within the archive, and the checksums of the files."""
    return (np.array([info.filename.encode() for info in self._infos], np.bytes_),
            np.array([info.CRC for info in self._infos], np.int64))
