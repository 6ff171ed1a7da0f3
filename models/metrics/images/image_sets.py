"""Sets of images to evaluate: encoded images, an array in an NPZ file, or examples of a source."""

import abc
import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path

from models.vision.images import labels as labels_lib
from models.vision.images.classes import NO_CLASSES, Classes
from models.vision.images.decode import (
  as_array,
  as_image,
  center_square,
  opened,
  squared,
  upright_rgb,
)
from models.vision.images.encoded_images import EncodedImages
from models.vision.images.image_source import ImageSource, labels_of, read
from models.vision.images.thread_map import map_in_threads
from models.vision.sources import open_encoded
from replicator import UsageError
from replicator.errors import first_line

import numpy as np

_AT_A_TIME = 256


class ImageSet(abc.ABC):
  """Images of one size, read in batches by a subclass.

  Attributes:
    name: the user's name for it.
    size: number of images.
    resolution: height and width.
    resizing: how the images were resized, in a few words; `none` if they were not.
    formats: formats of the files read so far, such as `PNG`; empty if there are no files.
    classes: classes of all images, or of a generator; none if there are no labels.
    unlabeled: why there are no labels, if a list of labels exists but does not fit.
  """

  unlabeled = ""
  naming = "give folders the same names, or save names as 'labels' next to an array"  # For errors.

  def __init__(self, name: str, size: int, resolution: tuple[int, int],
               classes: Classes = NO_CLASSES, resizing: str = "none") -> None:
    self.name = name
    self.size = size
    self.resolution = resolution
    self.resizing = resizing
    self.formats: set[str] = set()
    self.classes = classes

  @abc.abstractmethod
  def batches(self, indices: np.ndarray) -> Iterator[np.ndarray]:
    """Yields RGB images, uint8 [n, h, w, 3], at ascending `indices`; gray ones have equal channels.

    Raises:
      UsageError: an image cannot be read, or differs in size from the first.
    """

  @abc.abstractmethod
  def labels(self, indices: np.ndarray) -> np.ndarray | None:
    """Returns the labels of the images at `indices`, int [n], or None if they have no classes."""


class Seen:
  """A pass-through for batches of images that collects facts about them.

  `count` is the number of images, and `is_gray` whether the channels of every pixel were equal.
  """

  def __init__(self) -> None:
    self.count = 0
    self.is_gray = True
    self._digest = hashlib.sha256()

  def __call__(self, batches: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    """Yields the batches, [n, h, w, 3] each."""
    for images in batches:
      self.count += len(images)
      self.is_gray = self.is_gray and bool((images == images[..., :1]).all())
      self._digest.update(images.tobytes())
      yield images

  @property
  def sha256(self) -> str:
    """The digest of all pixels, in their order."""
    return self._digest.hexdigest()


def pick(images: ImageSet, indices: np.ndarray) -> np.ndarray:
  """Returns the images at indices [n] in any order, uint8 [n, h, w, 3]."""
  ascending, back = np.unique(indices, return_inverse=True)
  return np.concatenate(list(images.batches(ascending)))[back]


def open_set(path: str, resolution: int | None = None) -> ImageSet:
  """Opens images of a folder, an archive, shards or a library, or of an array in an `.npz`.

  Classes are the same as in training: by folder or by `dataset.json`. Images outside of folders
  have no classes.

  Args:
    path: see `models.vision.sources.open_encoded`; images may be at any depth.
    resolution: the size to which the center square of each image is resized, by Pillow's bicubic
      filter. By default images are not resized, and must have one size.

  Raises:
    UsageError: `path` does not exist, it has no images, or the first cannot be read.
  """
  place = Path(path).expanduser()
  if place.suffix == ".npz" and place.is_file():
    return _Array(path, *_array(path, place), resolution)
  return _Encoded(open_encoded(path, needs_classes=False), resolution)


class Source(ImageSet):
  """An `ImageSource` as an `ImageSet`."""

  def __init__(self, name: str, source: ImageSource) -> None:
    self._source, self._labels = source, labels_of(source)
    super().__init__(name, source.size, source.image_shape[:2],
                     _classes(self._labels, tuple(source.class_names)))

  def batches(self, indices: np.ndarray) -> Iterator[np.ndarray]:
    """See `ImageSet`."""
    for i in range(0, len(indices), _AT_A_TIME):
      yield rgb(read(self._source, indices[i:i + _AT_A_TIME])[0])

  def labels(self, indices: np.ndarray) -> np.ndarray | None:
    """See `ImageSet`."""
    return self._labels[indices] if self.classes else None


def _classes(labels: np.ndarray, class_names: tuple[str, ...]) -> Classes:
  """Returns the classes of images; images that are all of the class `all` have none."""
  return NO_CLASSES if class_names == ("all",) else Classes.of(labels, class_names)


def rgb(images: np.ndarray) -> np.ndarray:
  """Converts images [n, h, w, 1 or 3] to three channels."""
  return np.repeat(images, 3, axis=-1) if images.shape[-1] == 1 else images


# ---- Files --------------------------------------------------------------------------------------


class _Encoded(ImageSet):
  """Encoded images, decoded in a thread pool."""

  def __init__(self, encoded: EncodedImages, resolution: int | None) -> None:
    super().__init__(encoded.path, len(encoded.labels), (0, 0),
                     _classes(encoded.labels, encoded.class_names), _resizing(resolution))
    self._encoded, self.unlabeled = encoded, encoded.unlabeled
    self._square = resolution
    self.resolution = self._decode(0).shape[:2]

  def batches(self, indices: np.ndarray) -> Iterator[np.ndarray]:
    decoded = map_in_threads(self._decode, indices.tolist())
    for i in range(0, len(indices), _AT_A_TIME):
      images = list(itertools.islice(decoded, _AT_A_TIME))
      for index, image in zip(indices[i:], images, strict=False):
        if image.shape[:2] != self.resolution:
          found, first = ("x".join(map(str, size)) for size in (image.shape[:2], self.resolution))
          raise UsageError(
              f"{self._encoded.name(index)} is {found} and the first image {first}; use "
              f"--resolution={min(self.resolution)} for center squares of one size, or resize the "
              "images")
      yield np.stack(images)

  def labels(self, indices: np.ndarray) -> np.ndarray | None:
    return self._encoded.labels[indices] if self.classes else None

  def _decode(self, index: int) -> np.ndarray:
    try:
      with opened(self._encoded.read(index)) as image:
        self.formats.add(image.format or "")
        return np.asarray(squared(image, self._square) if self._square else upright_rgb(image))
    except Exception as error:  # Pillow raises errors of many types for broken files.
      raise UsageError(f"{self._encoded.name(index)} cannot be read as an image "
                       f"({first_line(error)}): save it again, or remove it") from error


# ---- Arrays -------------------------------------------------------------------------------------


class _Array(ImageSet):
  """The images of an array [n, h, w, 1 or 3], and their labels [n], numbers or names, or None."""

  def __init__(self, name: str, images: np.ndarray, labels: np.ndarray | None,
               resolution: int | None) -> None:
    if resolution:
      images = np.stack([as_array(center_square(as_image(each), resolution)) for each in images])
    numbers, names = (labels_lib.of_one(len(images)) if labels is None
                      else labels_lib.from_values(labels, f"{name}: the labels"))
    super().__init__(name, len(images), images.shape[1:3], _classes(numbers, names),
                     _resizing(resolution))
    self._images, self._labels = images, numbers

  def batches(self, indices: np.ndarray) -> Iterator[np.ndarray]:
    for i in range(0, len(indices), _AT_A_TIME):
      yield rgb(self._images[indices[i:i + _AT_A_TIME]])

  def labels(self, indices: np.ndarray) -> np.ndarray | None:
    return self._labels[indices] if self.classes else None


def _array(path: str, place: Path) -> tuple[np.ndarray, np.ndarray | None]:
  """Reads the only array of images in an NPZ, and their labels, without running code."""
  try:
    with np.load(place, allow_pickle=False) as content:
      arrays = {name: content[name] for name in content.files}
  except Exception as error:  # NumPy and zipfile raise errors of many types for broken files.
    reason = first_line(error)[:80]
    raise UsageError(f"{path}: cannot be read ({reason}): write it again with np.savez") from error
  found = {name: array for name, array in arrays.items() if array.ndim == 4} or {
      name: array[..., np.newaxis] for name, array in arrays.items()
      if array.ndim == 3 and array.dtype == np.uint8}  # Of gray images.
  if len(found) != 1:
    listed = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
    raise UsageError(f"{path}: has {len(found)} arrays of images among: {listed or 'nothing'}; "
                     "save one [n, h, w, 3], as np.savez(FILE, images=images) does, or gray ones "
                     "[n, h, w]")
  [(name, images)] = found.items()
  _check_array(f"{path}: '{name}' {list(images.shape)} of {images.dtype}", images)
  labels = {name: array for name, array in arrays.items()
            if array.shape == (len(images),) and array.dtype.kind in "iuU"}
  only = next(iter(labels.values())) if len(labels) == 1 else None
  return images, labels.get("labels", only)


def _check_array(what: str, images: np.ndarray) -> None:
  if not images.size:
    raise UsageError(f"{what}: has no images")
  if images.shape[-1] not in (1, 3):
    raise UsageError(f"{what}: the last axis must be the channels, 1 or 3" + (
        "; save images.transpose(0, 2, 3, 1)" if images.shape[1] in (1, 3) else ""))
  if images.dtype != np.uint8:
    raise UsageError(f"{what}: has numbers from {images.min():g} to {images.max():g}, but images "
                     "must be uint8 from 0 to 255; save np.uint8(np.round(255 * images)) if they "
                     "are in [0, 1], or np.uint8(np.round(127.5 * (images + 1))) if in [-1, 1]")
  if images.max() <= 1:
    raise UsageError(f"{what}: no number is above 1, as if images in [0, 1] were cast to uint8; "
                     "save np.uint8(np.round(255 * images)) of the originals")


def _resizing(resolution: int | None) -> str:
  return (f"center squares to {resolution}x{resolution}, bicubic with antialiasing (Pillow)"
          if resolution else "none")
