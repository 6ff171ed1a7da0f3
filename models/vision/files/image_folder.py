"""A folder of image files, with one sub-folder per class or a file of labels."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from models.vision.files import layout, listing
from models.vision.images import labels as labels_lib
from models.vision.images.encoded_images import MEMORY_LIMIT, DecodedImages, EncodedImages
from replicator import UsageError

import gin
import numpy as np


@gin.configurable
class ImageFolder(DecodedImages):
  """Images of a folder, center-cropped and resized: an `ImageSource` of [r, r, 3].

  Classes are the sub-folders that contain at least one image, at any depth, in sorted order: as
  numbers, if all names are numbers. Files are sorted by class and name, so example `i` is always
  the same image. Images are .jpg, .png, .webp, .tif, .avif, .bmp, .gif, .ppm and .pgm files; other
  files, broken links and unreadable folders are skipped and counted. Names that begin with a dot,
  and system folders such as `lost+found`, are skipped. Links are followed, even to folders. Images
  are rotated by their EXIF orientation, gray becomes RGB, transparency becomes white, and only the
  first frame of an animation is used.

  A file of `labels` defines the classes, and then sub-folders have no meaning. It is a JSON file in
  the format of StyleGAN's data sets, as in an `ImageZip`, or a CSV file with two columns,
  `cats/001.jpg,cat`: the path of an image in the folder, and the number or name of its class. It
  may start with a header such as `file,label`. Classes are sorted like sub-folders. A
  `dataset.json` in a folder that contains all images, as in an unpacked archive, is found
  automatically.

  A folder that fits into `memory_limit` is decoded at construction, into `3 * resolution**2` bytes
  per image: 10,000 images take 31 MB at 32 pixels and 492 MB at 128. The peak, while reading and
  when a pipeline starts, is up to three times that. Files of a larger folder are decoded whenever
  they are drawn, and only their names are in memory; see `DecodedImages`.
  """

  def __init__(self, path: str, resolution: int, on_error: str = "raise",
               memory_limit: int = MEMORY_LIMIT, labels: str | None = None) -> None:
    """Lists the folder, and reads it if it fits into `memory_limit`.

    Args:
      path: the folder.
      resolution: height and width of the examples, in pixels.
      on_error: what to do with an image that cannot be decoded, and with a class most of whose
        files are not images or cannot be read: 'raise' stops with its name, 'skip' skips and logs
        it.
      memory_limit: maximum bytes of decoded images to keep.
      labels: the path of a CSV or JSON file of labels, relative to the folder; by default the
        `dataset.json` in a folder that contains all images, if any.

    Raises:
      UsageError: `path` is not a folder or has no images in sub-folders, these are `train` and
        `val` or lose most of their files, `labels` does not have one label for each image, a file
        cannot be decoded (or none can), or an argument is invalid.
    """
    super().__init__(list_folder(path, labels, skips=on_error == "skip"), resolution, on_error,
                     memory_limit)


class ImageFiles(EncodedImages):
  """Image files, as `EncodedImages`."""

  def __init__(self, path: str, files: Iterable[Path], labels: np.ndarray,
               class_names: tuple[str, ...], unlabeled: str = "") -> None:
    """Takes n files that were found at `path`, and their labels, int [n]."""
    self.path, self.unlabeled = path, unlabeled
    self.labels = np.asarray(labels, np.int32)
    self.class_names = class_names
    # An array of bytes, since path objects take ten times as much memory.
    self._names = np.array([os.fsencode(file) for file in files], np.bytes_)

  def name(self, index: int) -> str:
    """Returns the path of the file in readable form."""
    return listing.printable(os.fsdecode(self._names[index]))

  def read(self, index: int) -> bytes:
    """Returns the content of the file."""
    return Path(os.fsdecode(self._names[index])).read_bytes()

  def files(self) -> Iterable[str]:
    """Returns the paths of all files."""
    return map(os.fsdecode, self._names)

  def facts(self) -> Sequence[np.ndarray]:
    """Returns the paths within the folder, and the sizes of the files."""
    files, folder = self._names.tolist(), os.fsencode(Path(self.path).expanduser() / "_")[:-1]
    return (np.array([file.removeprefix(folder) for file in files]),
            np.array([os.stat(file).st_size for file in files], np.int64))


def list_folder(path: str, labels: str | None = None, needs_classes: bool = True,
                skips: bool = False) -> ImageFiles:
  """Lists the image files of an `ImageFolder`, in order; raises a UsageError if there are none.

  Without `needs_classes`, it lists all images at any depth; see `layout.find`. A class that loses
  most of its files is logged if `skips`, otherwise rejected.
  """
  root, setting = Path(path).expanduser(), f"ImageFolder.path = {str(path)!r}"
  if not root.is_dir():
    raise UsageError(f"{setting}: no such folder. Write the path of a folder with one sub-folder "
                     "of images per class, or use ImageZip for a ZIP archive.")
  files: list[Path] = []
  names: list[str] = []
  left: dict[str, str] = {}
  for file, problem in sorted(_files_in(str(root))):
    name = listing.printable(file.relative_to(root).as_posix())
    problem = problem or _problem(file, name)
    if problem:
      left[name] = problem
    else:
      files.append(file)
      names.append(name)
  listing.report(str(path), left)
  if not files:
    raise UsageError(f"{setting if needs_classes else path}: {listing.none_found(left)}")
  if labels is not None:
    return ImageFiles(str(path), files, *_labels_in(root, labels, names))
  listed = layout.list_around(names, left.keys(), str(path), needs_classes)
  inside, content = names, None
  if listed is not None:
    inside, content = layout.beside(listed, names), (root / listed).read_bytes()
  found = layout.find(inside, content, str(path), str(root / (listed or "")), needs_classes)
  if needs_classes and listed is None:
    listing.check_classes(str(path), [names[i] for i in found.kept], left, skips,
                          "ImageFolder.on_error")
  return ImageFiles(str(path), [files[i] for i in found.kept], found.labels, found.class_names,
                    found.unlabeled)


def _files_in(folder: str, above: tuple[str, ...] = ()) -> Iterator[tuple[Path, str]]:
  """Yields all files in a folder, at any depth and through links, each with an empty string.

  Unreadable folders, and links back to a parent folder, are also yielded; the string says why.
  """
  place = os.path.realpath(folder)
  if place in above:
    yield Path(folder), listing.CIRCULAR
    return
  if not os.access(folder, os.R_OK | os.X_OK):
    yield Path(folder), listing.FORBIDDEN
    return
  with os.scandir(folder) as entries:
    for entry in entries:
      if entry.is_dir():
        yield from _files_in(entry.path, (*above, place))
      else:
        yield Path(entry.path), ""


def _problem(file: Path, name: str) -> str:
  """Returns why a file cannot be opened as an image; empty if it may be possible."""
  if not listing.is_image(name):
    return listing.NO_IMAGE
  return "" if file.is_file() else listing.BROKEN


def _labels_in(root: Path, labels: str, names: list[str]) -> labels_lib.Labels:
  """Reads the labels of image files from a file of labels."""
  setting, file = f"ImageFolder.labels = {labels!r}", root / Path(labels).expanduser()
  if file.suffix not in (".csv", ".json"):
    raise UsageError(f"{setting}: must be a .csv or .json file")
  if not file.is_file():
    raise UsageError(f"{setting}: no such file in {root}; give the path of a file of labels, "
                     "relative to that folder")
  read = labels_lib.from_csv if file.suffix == ".csv" else labels_lib.from_json
  return read(file.read_bytes(), names, str(file)) or labels_lib.of_one(len(names))
