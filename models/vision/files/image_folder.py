"""A folder of image files, with one sub-folder per class or a file of labels."""

import os
from collections.abc import Iterable
from pathlib import Path

import gin
import numpy as np
from absl import logging

from models.vision.images import labels as labels_lib
from models.vision.images.encoded_images import MEMORY_LIMIT, DecodedImages, decode_many
from replicator import UsageError

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png")
"""The endings of names of image files, in lower case."""

_LAYOUT = "one sub-folder of images per class, such as cats/001.jpg and dogs/001.jpg"


@gin.configurable
class ImageFolder(DecodedImages):
  """Images of a folder, center-cropped and resized: an `ImageSource` of [r, r, 3].

  Classes are the sub-folders that hold at least one .jpg, .jpeg, .png, .bmp or .gif file, at any
  depth, in sorted order. Files are sorted too, so example `i` is always the same one. Other files,
  and names that begin with a dot, are skipped. Images are rotated by their EXIF orientation, gray
  becomes RGB, transparency becomes white, and an animation gives its first frame.

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
      on_error: what to do with a file that cannot be decoded: 'raise' stops with its name, 'skip'
        skips it and logs how many were skipped.
      memory_limit: bytes of decoded images to keep at most.
      labels: the path of a CSV or JSON file of labels, from the folder on; by default
        `dataset.json`, if the folder has one.

    Raises:
      UsageError: `path` is not a folder or has no images in sub-folders, `labels` does not have one
        label for each image, a file cannot be decoded (or none can), or an argument has a wrong
        value.
    """
    files = list_folder(path, labels)
    super().__init__(files, resolution, on_error, memory_limit)
    logging.info("ImageFolder found %d images of %d classes in %s",
                 self.size, self.num_classes, path)


class ImageFiles:
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


def read_folder(path: str, image_shape: tuple[int, int, int], count: int
                ) -> tuple[np.ndarray, int]:
  """The first images anywhere in a folder, as an `ImageFolder` reads them.

  Args:
    path: the folder; its files are sorted by their paths.
    image_shape: (height, width, channels) that they get; one channel is the luminance.
    count: how many to read at most.

  Returns:
    uint8 `[n, *image_shape]`, and the number of images in the folder.

  Raises:
    UsageError: there is no such folder, it has no image, or one cannot be decoded.
  """
  root = Path(path).expanduser()
  if not root.is_dir():
    raise UsageError(f"{path}: no such folder; write the path of a folder of images")
  files = images_under(root)
  if not files:
    raise UsageError(f"{path}: has no images (file types: {' '.join(SUFFIXES)})")
  first = ImageFiles(path, files[:count], np.zeros(len(files[:count])), ("all",))
  images, _ = decode_many(first, range(len(first.labels)), image_shape, "ImageFolder")
  return images, len(files)


def list_folder(path: str, labels: str | None = None, needs_classes: bool = True) -> ImageFiles:
  """The image files of an `ImageFolder`, in order; raises a UsageError if there are none.

  Without `needs_classes`, they are all images at any depth, with the labels of `labels.if_any`.
  """
  root, setting = Path(path).expanduser(), f"ImageFolder.path = {str(path)!r}"
  if root.is_file():
    raise UsageError(f"{setting}: is a file. Use ImageZip if it is a ZIP archive, or write the "
                     f"path of a folder with {_LAYOUT}.")
  if not root.is_dir():
    raise UsageError(f"{setting}: no such folder. Write the path of a folder with {_LAYOUT}.")
  listed = root / labels_lib.JSON
  if not needs_classes:
    return _of_any_layout(path, root, listed.read_bytes() if listed.is_file() else None)
  if labels is None and listed.is_file():
    labels = labels_lib.JSON
  if labels is not None:
    return _labeled(path, root, labels)
  by_class = {folder.name: images_under(folder) for folder in sorted(root.iterdir())
              if folder.is_dir() and not folder.name.startswith(".")}
  by_class = {name: files for name, files in by_class.items() if files}
  if not by_class and (flat := images_under(root)):
    raise UsageError(f"{setting}: no image in any sub-folder, but {len(flat):,} in the folder "
                     f"itself. Expected {_LAYOUT}; images without classes may all be in one "
                     f"sub-folder, such as {root.name}/all.")
  if not by_class:
    raise UsageError(f"{setting}: no image in any sub-folder. Expected {_LAYOUT} (file types: "
                     f"{' '.join(SUFFIXES)}).")
  counts = [len(files) for files in by_class.values()]
  files = [file for files in by_class.values() for file in files]
  return ImageFiles(str(path), files, np.repeat(np.arange(len(counts)), counts), tuple(by_class))


def _of_any_layout(path: str, root: Path, listed: bytes | None) -> ImageFiles:
  """All image files of a folder; `listed` is the content of its `dataset.json`, if it has one."""
  files = images_under(root)
  if not files:
    raise UsageError(f"{path}: has no images (file types: {' '.join(SUFFIXES)})")
  names = [image.relative_to(root).as_posix() for image in files]
  return ImageFiles(str(path), files, *labels_lib.if_any(listed, names))


def _labeled(path: str, root: Path, labels: str) -> ImageFiles:
  """The image files of a folder with a file of labels."""
  setting, file = f"ImageFolder.labels = {labels!r}", root / Path(labels).expanduser()
  if file.suffix not in (".csv", ".json"):
    raise UsageError(f"{setting}: write the name of a .csv or a .json file")
  if not file.is_file():
    raise UsageError(f"{setting}: no such file in {root}; write the path of a file of labels, from "
                     "the folder on")
  files = images_under(root)
  if not files:
    raise UsageError(f"ImageFolder.path = {str(path)!r}: has no images (file types: "
                     f"{' '.join(SUFFIXES)})")
  names = [image.relative_to(root).as_posix() for image in files]
  read = labels_lib.from_csv if file.suffix == ".csv" else labels_lib.from_json
  found = read(file.read_bytes(), names, str(file))
  return ImageFiles(str(path), files, *(found or (np.zeros(len(files), np.int32), ("all",))))


def images_under(folder: Path) -> list[Path]:
  """The image files at any depth, in sorted order, without those whose names begin with a dot."""
  return sorted(file for file in folder.rglob("*")
                if file.suffix.lower() in SUFFIXES and not file.name.startswith(".")
                and file.is_file())
