"""The images that a preview is about."""

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from PIL import Image

from models.vision import data
from models.vision.files.image_folder import ImageFiles
from models.vision.images.decode import Original, opened, upright_rgb
from models.vision.images.encoded_examples import EncodedExamples
from models.vision.images.encoded_images import DecodedImages, EncodedImages, reason_of
from models.vision.images.image_source import ImageSource
from replicator import UsageError

_Result = TypeVar("_Result")

THUMBNAIL = (8, 9)
"""Height and width of the small image by which large ones are compared."""

_AT_ONCE = 128  # Images in memory.


class Look(NamedTuple):
  """What is kept of an image.

  Attributes:
    label: the number of its class.
    width: in pixels, as it is shown.
    height: in pixels, as it is shown.
    num_bytes: of its file, or of a PNG file that it would be.
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


class Contents:
  """Numbered images of `class_names`, as a command line names them.

  Attributes:
    name: what the user wrote.
    size: number of images.
    class_names: one name per label, in label order.
    labels: int [size].
    resolution: the height and width of examples that the user or the data says, or None.
    channels: 3, or 1 where the data has gray images.
    empty_folders: sub-folders that have no image and so are not classes.
  """

  def __init__(self, name: str, resolution: int | None = None) -> None:
    """Opens a folder, a file, or a data set by name.

    Args:
      name: as `data.open_encoded` takes it.
      resolution: the height and width of examples that the user wrote.

    Raises:
      UsageError: there are no images, or they come in another resolution.
    """
    encoded, shape = data.open_encoded(name)
    self._is_in_files = not isinstance(encoded, EncodedExamples)
    if shape and not self._is_in_files and resolution not in (None, shape[0]):
      raise UsageError(f"--resolution={resolution}: the images of {name} have {shape[0]} px; leave "
                       "it out")
    self.name = name
    self.size = len(encoded.labels)
    self.class_names = encoded.class_names
    self.labels = encoded.labels
    self.resolution = resolution or (shape and shape[0])
    self.channels = shape[2] if shape else 3
    self.empty_folders = _empty_folders(Path(name).expanduser(), encoded)
    self._encoded = encoded

  def looks(self, indices: np.ndarray) -> Iterator[Look | str]:
    """A look at each image of `indices`, or the reason why it cannot be read."""
    return _mapped(self._look, indices)

  def _look(self, index: int) -> Look | str:
    try:
      content = self._encoded.read(index)
      with opened(content) as image:
        kind = image.format or "" if self._is_in_files else ""
        return _look(image, int(self.labels[index]), kind, content)
    except UsageError:
      raise
    except Exception as error:  # Pillow raises errors of many types for broken files.
      return reason_of(error)

  def pictures(self, indices: np.ndarray, side: int) -> Iterator[Image.Image]:
    """The whole images in RGB; of those that are much larger than `side`, at a fraction.

    Raises an error of any type if one cannot be read.
    """
    def picture(index: int) -> Image.Image:
      with opened(self._encoded.read(index)) as image:
        image.draft(None, (2 * side, 2 * side))
        whole = upright_rgb(image)
      return whole.reduce(max(1, min(whole.size) // (2 * side)))

    return _mapped(picture, indices)

  def title(self, index: int) -> str:
    """What leads a person to the image, such as the path of its file within the folder."""
    full = self._encoded.name(index)
    for root in (f"{Path(self.name).expanduser()}{os.sep}", f"{self.name}: "):
      full = full.removeprefix(root)
    return full

  def source(self, resolution: int) -> ImageSource:
    """What a training draws from, at a resolution."""
    return DecodedImages(self._encoded, resolution, "skip", 0, self.channels)


def _look(image: Image.Image, label: int, kind: str, content: bytes) -> Look:
  """A look at an image that was opened from `content`, and is closed afterwards."""
  height, width = Original(image).size
  image.draft(None, (8 * THUMBNAIL[1], 8 * THUMBNAIL[0]))  # Large JPEGs: fast, at a fraction.
  small = upright_rgb(image).resize(THUMBNAIL[::-1], Image.Resampling.BOX)
  pixels = np.asarray(small, np.int16)
  return Look(label, width, height, len(content), kind, int(np.ptp(pixels, axis=-1).max()),
              hashlib.blake2b(content, digest_size=16).digest(), np.asarray(small.convert("L")))


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
