"""The images that a preview is about, whether they are in files or are drawn by a source."""

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from PIL import Image
from PIL.ExifTags import Base

from models.vision import data
from models.vision.decoding import DecodedImages, EncodedImages, reason_of
from models.vision.folder import ImageFiles
from models.vision.images import ImageSource, read
from models.vision.pictures import opened, upright_rgb
from models.vision.preview.drawing import as_image
from replicator.errors import UsageError

_Result = TypeVar("_Result")

THUMBNAIL = (8, 9)
"""Height and width of the small image by which large ones are compared."""

_AT_ONCE = 128  # Images in memory.
_DRAWN_AT_ONCE = 1024  # The same, of those that are drawn, which are small.


class Look(NamedTuple):
  """What is kept of an image.

  Attributes:
    label: the number of its class.
    width: in pixels, as it is shown.
    height: in pixels, as it is shown.
    num_bytes: of its file, or of its pixels.
    format: of its file, such as `JPEG`; empty for what is in no file.
    colors: the greatest difference of the channels of a pixel of the thumbnail, in levels of 255.
    digest: 16 bytes that are the same for equal contents.
    thumbnail: luminance, uint8 `[8, 9]`.
  """

  label: int
  width: int
  height: int
  num_bytes: int
  format: str
  colors: int
  digest: bytes
  thumbnail: np.ndarray


class Contents(Protocol):
  """Numbered images of `class_names`, as a command line names them.

  Attributes:
    name: what the user wrote.
    size: number of images.
    class_names: one name per label, in label order.
    labels: int [size], or None if only a look at an image shows its label.
    resolution: the height and width of examples that the user or the source says, or None.
    channels: 3, or 1 where the source gives gray images.
    empty_folders: sub-folders that have no image and so are not classes.
  """

  name: str
  size: int
  class_names: tuple[str, ...]
  labels: np.ndarray | None
  resolution: int | None
  channels: int
  empty_folders: tuple[str, ...]

  def looks(self, indices: np.ndarray) -> Iterator[Look | str]:
    """A look at each image of `indices`, or the reason why it cannot be read."""
    ...

  def pictures(self, indices: np.ndarray, side: int) -> Iterator[Image.Image]:
    """The whole images in RGB; of those that are much larger than `side`, at a fraction.

    Raises an error of any type if one cannot be read.
    """
    ...

  def title(self, index: int) -> str:
    """What leads a person to the image, such as the path of its file within the folder."""
    ...

  def source(self, resolution: int) -> ImageSource:
    """What a training draws from, at a resolution."""
    ...


def open_contents(name: str, resolution: int | None = None) -> Contents:
  """The images of a folder, a ZIP archive or shards, or of a named data set.

  Args:
    name: what the user wrote.
    resolution: the height and width of examples that the user wrote.

  Raises:
    UsageError: there are no images, or they come in another resolution.
  """
  if name not in data.NAMED or Path(name).exists():
    encoded, shape = data.open_encoded(name)
    return _Files(name, encoded, resolution or (shape and shape[0]), shape[2] if shape else 3)
  source = data.NAMED[name]()
  if resolution not in (None, source.image_shape[0]):
    raise UsageError(f"--resolution={resolution}: the images of {name} have "
                     f"{source.image_shape[0]} px; leave it out")
  return _Drawn(name, source)


def _look(image: Image.Image, label: int, content: bytes) -> Look:
  """A look at an image that was opened from `content`, and is closed afterwards."""
  width, height = image.size
  if image.getexif().get(Base.Orientation, 1) > 4:  # Turned by a quarter.
    width, height = height, width
  kind = image.format or ""
  image.draft(None, (8 * THUMBNAIL[1], 8 * THUMBNAIL[0]))  # Large JPEGs: fast, at a fraction.
  small = upright_rgb(image).resize(THUMBNAIL[::-1], Image.Resampling.BOX)
  pixels = np.asarray(small, np.int16)
  return Look(label, width, height, len(content), kind, int(np.ptp(pixels, axis=-1).max()),
              hashlib.blake2b(content, digest_size=16).digest(), np.asarray(small.convert("L")))


class _Files:
  """Encoded images, as `Contents`."""

  def __init__(self, name: str, encoded: EncodedImages, resolution: int | None,
               channels: int) -> None:
    self.name = name
    self.size = len(encoded.labels)
    self.class_names = encoded.class_names
    self.labels: np.ndarray | None = encoded.labels
    self.resolution = resolution
    self.channels = channels
    self.empty_folders = _empty_folders(Path(name).expanduser(), encoded)
    self._encoded = encoded

  def looks(self, indices: np.ndarray) -> Iterator[Look | str]:
    return _mapped(self._look, indices)

  def _look(self, index: int) -> Look | str:
    try:
      content = self._encoded.read(index)
      with opened(content) as image:
        return _look(image, int(self._encoded.labels[index]), content)
    except UsageError:
      raise
    except Exception as error:  # Pillow raises errors of many types for broken files.
      return reason_of(error)

  def pictures(self, indices: np.ndarray, side: int) -> Iterator[Image.Image]:
    def picture(index: int) -> Image.Image:
      with opened(self._encoded.read(index)) as image:
        image.draft(None, (2 * side, 2 * side))
        whole = upright_rgb(image)
      return whole.reduce(max(1, min(whole.size) // (2 * side)))

    return _mapped(picture, indices)

  def title(self, index: int) -> str:
    full = self._encoded.name(index)
    for root in (f"{Path(self.name).expanduser()}{os.sep}", f"{self.name}: "):
      full = full.removeprefix(root)
    return full

  def source(self, resolution: int) -> ImageSource:
    return DecodedImages(self._encoded, resolution, "skip", 0, self.channels)


def _mapped(function: Callable[[int], _Result], indices: np.ndarray) -> Iterator[_Result]:
  """The results for each index, in order, by a pool of threads."""
  with ThreadPoolExecutor(os.cpu_count()) as pool:  # Pillow decodes without the GIL.
    for start in range(0, len(indices), _AT_ONCE):
      yield from pool.map(function, indices[start:start + _AT_ONCE].tolist())


def _empty_folders(root: Path, encoded: EncodedImages) -> tuple[str, ...]:
  if not isinstance(encoded, ImageFiles):
    return ()
  filled = {file.removeprefix(f"{root}{os.sep}").partition(os.sep)[0] for file in encoded.files()}
  return tuple(sorted(folder.name for folder in root.iterdir() if folder.is_dir()
                      and not folder.name.startswith(".") and folder.name not in filled))


class _Drawn:
  """The images of a source, as `Contents`."""

  def __init__(self, name: str, source: ImageSource) -> None:
    self.name = name
    self.size = source.size
    self.class_names = source.class_names
    self.labels: np.ndarray | None = None
    self.resolution: int | None = source.image_shape[0]
    self.channels = source.image_shape[2]
    self.empty_folders: tuple[str, ...] = ()
    self._source = source

  def looks(self, indices: np.ndarray) -> Iterator[Look | str]:
    for start in range(0, len(indices), _DRAWN_AT_ONCE):
      images, labels = read(self._source, indices[start:start + _DRAWN_AT_ONCE])
      for image, label in zip(images, labels, strict=True):
        yield _look(as_image(image), int(label), image.tobytes())

  def pictures(self, indices: np.ndarray, side: int) -> Iterator[Image.Image]:
    yield from map(as_image, read(self._source, indices)[0])

  def title(self, index: int) -> str:
    return f"image {index:,}"

  def source(self, resolution: int) -> ImageSource:
    return self._source
