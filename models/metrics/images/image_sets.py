"""Sets of images to evaluate: encoded images, the array of an NPZ, or the examples of a source."""

import abc
import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path

from models.vision.images.decode import as_array, as_image, center_square, opened, upright_rgb
from models.vision.images.encoded_images import EncodedImages
from models.vision.images.image_source import ImageSource, read
from models.vision.images.thread_map import map_in_threads
from models.vision.sources import open_encoded
from replicator import UsageError
from replicator.errors import first_line

import numpy as np

_AT_A_TIME = 256


class ImageSet(abc.ABC):
  """Images of one size, which are read some at a time; a subclass reads them.

  Attributes:
    name: what the user calls it.
    size: number of images.
    resolution: height and width.
    resizing: how the images got this size, in a few words; `none` for what they have.
    formats: of the files that were read so far, such as `PNG`; empty for what is in no files.
    class_names: of the classes 0, 1, ...; empty if they have none.
  """

  def __init__(self, name: str, size: int, resolution: tuple[int, int],
               class_names: tuple[str, ...] = (), resizing: str = "none") -> None:
    self.name = name
    self.size = size
    self.resolution = resolution
    self.resizing = resizing
    self.formats: set[str] = set()
    self.class_names = class_names

  @abc.abstractmethod
  def batches(self, indices: np.ndarray) -> Iterator[np.ndarray]:
    """RGB images, uint8 [n, h, w, 3], at ascending `indices`; gray ones have equal channels.

    Raises:
      UsageError: an image cannot be read, or has another size than the first.
    """

  @abc.abstractmethod
  def labels(self, indices: np.ndarray) -> np.ndarray | None:
    """The classes of the images at `indices`, int [n], or None if they have no classes."""


class Seen:
  """Facts about the batches of images that passed through.

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
  """The images at indices [n] in any order, uint8 [n, h, w, 3]."""
  ascending, back = np.unique(indices, return_inverse=True)
  return np.concatenate(list(images.batches(ascending)))[back]


def open_set(path: str, resolution: int | None = None) -> ImageSet:
  """The images of a folder, an archive, shards or a library, or those of the array of an `.npz`.

  Their classes are those of a training on them: by folder or by `dataset.json`. Images in no folder
  have no classes.

  Args:
    path: as `models.vision.sources.open_encoded` takes it; images may be at any depth.
    resolution: the center square of each image is resized to that many pixels, by Pillow's bicubic
      filter. By default images stay as they are, and must have one size.

  Raises:
    UsageError: there is nothing of that name, it has no images, or the first cannot be read.
  """
  place = Path(path).expanduser()
  if place.suffix == ".npz" and place.is_file():
    return _Array(path, *_array(path, place), resolution)
  return _Encoded(open_encoded(path, needs_classes=False), resolution)


class Source(ImageSet):
  """An `ImageSource` as an `ImageSet`."""

  def __init__(self, name: str, source: ImageSource) -> None:
    super().__init__(name, source.size, source.image_shape[:2], tuple(source.class_names))
    self._source = source

  def batches(self, indices: np.ndarray) -> Iterator[np.ndarray]:
    """As those of an `ImageSet`."""
    for i in range(0, len(indices), _AT_A_TIME):
      yield rgb(read(self._source, indices[i:i + _AT_A_TIME])[0])

  def labels(self, indices: np.ndarray) -> np.ndarray:
    """As those of an `ImageSet`."""
    return read(self._source, indices)[1]


def rgb(images: np.ndarray) -> np.ndarray:
  """Images [n, h, w, 1 or 3] with three channels."""
  return np.repeat(images, 3, axis=-1) if images.shape[-1] == 1 else images


# ---- Files --------------------------------------------------------------------------------------


class _Encoded(ImageSet):
  """Encoded images, decoded by a pool of threads."""

  def __init__(self, encoded: EncodedImages, resolution: int | None) -> None:
    class_names = () if encoded.class_names == ("all",) else encoded.class_names
    super().__init__(encoded.path, len(encoded.labels), (0, 0), class_names, _resizing(resolution))
    self._encoded = encoded
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
              f"{self._encoded.name(index)} is {found} and the first image {first}; write "
              f"--resolution={min(self.resolution)} for center squares of one size, or resize the "
              "images")
      yield np.stack(images)

  def labels(self, indices: np.ndarray) -> np.ndarray | None:
    return self._encoded.labels[indices] if self.class_names else None

  def _decode(self, index: int) -> np.ndarray:
    try:
      with opened(self._encoded.read(index)) as image:
        self.formats.add(image.format or "")
        whole = upright_rgb(image)
        return np.asarray(center_square(whole, self._square) if self._square else whole)
    except Exception as error:  # Pillow raises errors of many types for broken files.
      raise UsageError(f"{self._encoded.name(index)} cannot be read as an image "
                       f"({first_line(error)}): save it again, or remove it") from error


# ---- Arrays -------------------------------------------------------------------------------------


class _Array(ImageSet):
  """The images of an array [n, h, w, 1 or 3], and their classes [n] or None."""

  def __init__(self, name: str, images: np.ndarray, classes: np.ndarray | None,
               resolution: int | None) -> None:
    if resolution:
      images = np.stack([as_array(center_square(as_image(each), resolution)) for each in images])
    super().__init__(name, len(images), images.shape[1:3], resizing=_resizing(resolution))
    self._images = images
    self._classes = classes

  def batches(self, indices: np.ndarray) -> Iterator[np.ndarray]:
    for i in range(0, len(indices), _AT_A_TIME):
      yield rgb(self._images[indices[i:i + _AT_A_TIME]])

  def labels(self, indices: np.ndarray) -> np.ndarray | None:
    return None if self._classes is None else self._classes[indices]


def _array(path: str, place: Path) -> tuple[np.ndarray, np.ndarray | None]:
  """The only array of images in an NPZ, of which no code runs, and their classes."""
  try:
    with np.load(place, allow_pickle=False) as content:
      arrays = {name: content[name] for name in content.files}
  except Exception as error:  # NumPy and zipfile raise errors of many types for broken files.
    reason = first_line(error)[:80]
    raise UsageError(f"{path}: cannot be read ({reason}): write it again with np.savez") from error
  found = {name: array for name, array in arrays.items() if array.ndim == 4}
  if len(found) != 1:
    listed = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
    raise UsageError(f"{path}: has {len(found)} arrays of images among: {listed or 'nothing'}; "
                     "save one [n, h, w, 3], as np.savez(FILE, images=images) does")
  [(name, images)] = found.items()
  _check_array(f"{path}: '{name}' {list(images.shape)} of {images.dtype}", images)
  numbers = [array for array in arrays.values()
             if array.shape == (len(images),) and array.dtype.kind in "iu"]
  return images, numbers[0] if len(numbers) == 1 else None


def _check_array(what: str, images: np.ndarray) -> None:
  if not images.size:
    raise UsageError(f"{what}: has no images")
  if images.shape[-1] not in (1, 3):
    raise UsageError(f"{what}: the last axis must be the channels, 1 or 3" + (
        "; write images.transpose(0, 2, 3, 1)" if images.shape[1] in (1, 3) else ""))
  if images.dtype != np.uint8:
    raise UsageError(f"{what}: has numbers from {images.min():g} to {images.max():g}, and images "
                     "are uint8 from 0 to 255; save np.uint8(np.round(255 * images)) of those in "
                     "[0, 1], or np.uint8(np.round(127.5 * (images + 1))) of those in [-1, 1]")
  if images.max() <= 1:
    raise UsageError(f"{what}: no number is above 1, as if images in [0, 1] had been cast; save "
                     "np.uint8(np.round(255 * images)) of the originals")


def _resizing(resolution: int | None) -> str:
  return (f"center squares to {resolution}x{resolution}, bicubic with antialiasing (Pillow)"
          if resolution else "none")
