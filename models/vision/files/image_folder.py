"""A folder of image files, with one sub-folder per class or a file of labels."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath

from models.vision.images import labels as labels_lib
from models.vision.images.encoded_images import MEMORY_LIMIT, DecodedImages, EncodedImages
from replicator import UsageError

import gin
import numpy as np

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png")
"""The endings of names of image files, in lower case."""


@gin.configurable
class ImageFolder(DecodedImages):
  """Images of a folder, center-cropped and resized: an `ImageSource` of [r, r, 3].

  Classes are the sub-folders that hold at least one .jpg, .jpeg, .png, .bmp or .gif file, at any
  depth, in sorted order. Files are sorted too, so example `i` is always the same one. Other files,
  and names that begin with a dot, are skipped. Links are followed, to folders too. Images are
  rotated by their EXIF orientation, gray becomes RGB, transparency becomes white, and an animation
  gives its first frame.

  With a file of `labels`, its classes are those of the images, and sub-folders mean nothing. It is
  a JSON file in the layout of StyleGAN's data sets, as an `ImageZip` has, or a CSV file of two
  columns, `cats/001.jpg,cat`: the path of an image in the folder, and the number or the name of its
  class. A heading, such as `file,label`, may come first. Names are sorted, as sub-folders are.

  A folder that fits into `memory_limit` is decoded at construction, into `3 * resolution**2` bytes
  an image: 10,000 images take 31 MB at 32 pixels and 492 MB at 128. The peak, while reading and
  when a pipeline starts, is up to three times that. Files of a larger folder are decoded whenever
  they are drawn, and only their names are in memory; see `DecodedImages`.
  """

  def __init__(self, path: str, resolution: int, on_error: str = "raise",
               memory_limit: int = MEMORY_LIMIT, labels: str | None = None) -> None:
    """Lists the folder, and reads it if it fits.

    Args:
      path: the folder.
      resolution: height and width of the examples, in pixels.
      on_error: what to do with an image that cannot be decoded: 'raise' stops with its name, 'skip'
        skips it and logs how many were skipped.
      memory_limit: bytes of decoded images to keep at most.
      labels: the path of a CSV or JSON file of labels, from the folder on; by default
        `dataset.json`, if the folder has one.

    Raises:
      UsageError: `path` is not a folder or has no images in sub-folders, `labels` does not have one
        label for each image, a file cannot be decoded (or none can), or an argument has a wrong
        value.
    """
    super().__init__(list_folder(path, labels), resolution, on_error, memory_limit)


class ImageFiles(EncodedImages):
  """Files of images, as `EncodedImages`."""

  def __init__(self, path: str, files: Iterable[Path], labels: np.ndarray,
               class_names: tuple[str, ...]) -> None:
    """Takes n files that were found at `path`, and their labels, int [n]."""
    self.path = path
    self.labels = np.asarray(labels, np.int32)
    self.class_names = class_names
    # An array of bytes, since a path object takes ten times the memory of its name.
    self._names = np.array([os.fsencode(file) for file in files], np.bytes_)

  def name(self, index: int) -> str:
    """The path of the file."""
    return os.fsdecode(self._names[index])

  def read(self, index: int) -> bytes:
    """The content of the file."""
    return Path(self.name(index)).read_bytes()

  def files(self) -> Iterable[str]:
    """The paths of all."""
    return map(os.fsdecode, self._names)

  def facts(self) -> Sequence[np.ndarray]:
    """The paths within the folder, and the sizes of the files."""
    files, folder = self._names.tolist(), os.fsencode(Path(self.path).expanduser() / "_")[:-1]
    return (np.array([file.removeprefix(folder) for file in files]),
            np.array([os.stat(file).st_size for file in files], np.int64))


def list_folder(path: str, labels: str | None = None, needs_classes: bool = True) -> ImageFiles:
  """The image files of an `ImageFolder`, in order; raises a UsageError if there are none.

  Without `needs_classes`, they are all images at any depth; see `labels.of_layout`.
  """
  root, setting = Path(path).expanduser(), f"ImageFolder.path = {str(path)!r}"
  if not root.is_dir():
    raise UsageError(f"{setting}: no such folder. Write the path of a folder with one sub-folder "
                     "of images per class, or use ImageZip for a ZIP archive.")
  files: list[Path] = []
  others: list[Path] = []
  for file in sorted(_files_in(str(root))):
    is_one = is_image(file.relative_to(root)) and file.is_file()
    (files if is_one else others).append(file)
  labels_lib.report_left_out(str(path), [file.relative_to(root).as_posix() for file in others],
                             "files that are no images")
  if not files:
    raise UsageError(f"{setting if needs_classes else path}: has no images (file types: "
                     f"{' '.join(SUFFIXES)})")
  names = [file.relative_to(root).as_posix() for file in files]
  if labels is not None:
    return ImageFiles(str(path), files, *_labels_in(root, labels, names))
  listed = root / labels_lib.JSON
  kept, found = labels_lib.of_layout(
      names, listed.read_bytes() if listed.is_file() else None, str(path), str(listed),
      needs_classes)
  return ImageFiles(str(path), [files[i] for i in kept], *found)


def _files_in(folder: str, above: tuple[str, ...] = ()) -> Iterator[Path]:
  """All files in a folder, at any depth and through links.

  A folder that cannot be read, and a link back to a folder around it, count as files.
  """
  place = os.path.realpath(folder)
  if place in above or not os.access(folder, os.R_OK | os.X_OK):
    yield Path(folder)
    return
  with os.scandir(folder) as entries:
    for entry in entries:
      if entry.is_dir():
        yield from _files_in(entry.path, (*above, place))
      else:
        yield Path(entry.path)


def _labels_in(root: Path, labels: str, names: list[str]) -> labels_lib.Labels:
  """The labels of image files by their names, from a file of labels."""
  setting, file = f"ImageFolder.labels = {labels!r}", root / Path(labels).expanduser()
  if file.suffix not in (".csv", ".json"):
    raise UsageError(f"{setting}: write the name of a .csv or a .json file")
  if not file.is_file():
    raise UsageError(f"{setting}: no such file in {root}; write the path of a file of labels, from "
                     "the folder on")
  read = labels_lib.from_csv if file.suffix == ".csv" else labels_lib.from_json
  return read(file.read_bytes(), names, str(file)) or labels_lib.of_one(len(names))


def is_image(path: PurePath) -> bool:
  """Whether it is the path of an image in a folder or an archive, of which no part is hidden."""
  is_hidden = any(part.startswith(".") for part in path.parts)
  return path.suffix.lower() in SUFFIXES and not is_hidden
