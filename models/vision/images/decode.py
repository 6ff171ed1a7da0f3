"""Decoding, cropping and resizing of one image; of a large JPEG, only the crop is decoded."""

import io
import warnings
from collections.abc import Callable
from typing import Any

import gin
import numpy as np
import tensorflow as tf
from PIL import Image, UnidentifiedImageError

Shape = tuple[int, int, int]
"""Height, width and channels of an image."""

Box = tuple[int, int, int, int]
"""Top, left, height and width of a part of an image, in pixels."""

View = Callable[["Original", Shape, int, int], np.ndarray]
"""Makes an example from a picture: `(picture, image_shape, seed, position) -> uint8 image_shape`.

`seed` is the run's, and `position` is the example's position in training order.
"""

_ORIENTATION = 0x0112  # The EXIF tag.
_TURNS = {2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180,
          4: Image.Transpose.FLIP_TOP_BOTTOM, 5: Image.Transpose.TRANSPOSE,
          6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE,
          8: Image.Transpose.ROTATE_90}  # To upright, by the value of the tag.
_EXCHANGES_SIDES = [_TURNS[value] for value in (5, 6, 7, 8)]
_MARGIN = 2  # Pixels around a crop that affect its pixels if chroma is subsampled.
_MANY = 2 ** 18  # Pixels outside of a crop above which skipping them saves time.

# Pillow does not name the file, and `opened` has its own limit.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
warnings.filterwarnings("ignore", category=UserWarning, module="PIL.TiffImagePlugin")


class Original:
  """A whole image, from which parts are cut out and resized.

  A part of a JPEG file has the same pixels as in the whole image, even though only the part of a
  large file is decoded. A part much larger than needed is decoded at a fraction of its size. `size`
  is the height and width of the upright image.
  """

  def __init__(self, image: Image.Image, content: bytes = b"") -> None:
    """Takes a Pillow image and, if it is not decoded yet, the content of its file."""
    self._image = image
    self._content = content
    turn = _turn(image)
    width, height = image.size
    self.size = (width, height) if turn in _EXCHANGES_SIDES else (height, width)
    self._is_simple = image.format == "JPEG" and turn is None and image.mode in ("L", "RGB")

  @classmethod
  def of_array(cls, pixels: np.ndarray) -> "Original":
    """Wraps a decoded image, uint8 `[h, w, 1 or 3]`."""
    return cls(as_image(pixels))

  def part(self, box: Box, size: tuple[int, int]) -> Image.Image:
    """Returns a part resized to `size` (height, width) by Pillow's bilinear filter, in RGB or gray.

    It reads files, and raises errors, like `decode`.
    """
    shrinking = max((k for k in (2, 4, 8) if self._image.format == "JPEG"
                     and min(box[2] // size[0], box[3] // size[1]) >= 2 * k), default=1)
    top, left, height, width = (edge // shrinking for edge in box)
    part = self._cut((top, left, height, width), shrinking)
    return part.resize(size[::-1], Image.Resampling.BILINEAR)

  def _cut(self, box: Box, shrinking: int) -> Image.Image:
    """Decodes the image at a fraction of its size, and returns a part, given in its pixels."""
    top, left, height, width = box
    image = self._image
    beside = image.width * image.height // shrinking ** 2 - width * height
    if self._is_simple and beside >= _MANY:
      try:
        return self._decoded_part(box, shrinking)
      except tf.errors.InvalidArgumentError:
        pass  # Pillow's error is clearer.
    if self._content:
      if image.format == "JPEG":  # A different part may be decoded at a different size.
        image = opened(self._content)
        image.draft(None, (image.width // shrinking, image.height // shrinking))
      image = upright_rgb(image)
    return image.crop((left, top, left + width, top + height))

  def _decoded_part(self, box: Box, shrinking: int) -> Image.Image:
    """Decodes only a part, by TensorFlow, to the same pixels as Pillow's of the whole image."""
    top, left, height, width = box
    before = min(left, _MARGIN)
    after = min(-(-self._image.width // shrinking) - left - width, _MARGIN)
    with tf.device("CPU:0"):
      pixels = tf.io.decode_and_crop_jpeg(
          self._content, [top, left - before, height, before + width + after], channels=3,
          ratio=shrinking, dct_method="INTEGER_ACCURATE").numpy()
    return Image.fromarray(pixels[:, before:before + width])


@gin.configurable("decode")
def set_pixel_limit(max_pixels: int | None = None) -> None:
  """Sets the maximum number of pixels of a file, `decode.max_pixels` in gin.

  A small file can decode to more than memory holds. None leaves Pillow's limit, 179 million, which
  is twice its `Image.MAX_IMAGE_PIXELS`.
  """
  if max_pixels is not None:
    Image.MAX_IMAGE_PIXELS = max_pixels // 2


def opened(content: bytes) -> Image.Image:
  """Opens an image file; Pillow reads only its header.

  Raises a ValueError if it is not an image, or has more pixels than `decode.max_pixels`.
  """
  set_pixel_limit()
  try:
    return Image.open(io.BytesIO(content))
  except UnidentifiedImageError:  # Its message names the buffer.
    raise ValueError("its content is not an image") from None
  except Image.DecompressionBombError:
    raise ValueError(f"it has more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels; if that "
                     "is right, set decode.max_pixels to a larger number") from None


def as_image(pixels: np.ndarray) -> Image.Image:
  """Converts uint8 `[h, w, 3 or 1]` to an image in RGB or gray."""
  return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def as_array(image: Image.Image) -> np.ndarray:
  """Returns the pixels of an image in RGB or gray, uint8 `[h, w, 3 or 1]`."""
  pixels = np.asarray(image)
  return pixels[..., np.newaxis] if pixels.ndim == 2 else pixels


def decode(content: bytes, image_shape: Shape) -> np.ndarray:
  """Decodes and resizes an image's center square: uint8 `image_shape`, which is [r, r, 1 or 3].

  Images are rotated by their EXIF orientation, transparency becomes white, and only the first frame
  of an animation is used. Gray becomes RGB, or colors become luminance (ITU-R 601). Of 16 bits, the
  upper 8 are kept. Pillow raises errors of many types for a broken image.
  """
  resolution, _, channels = image_shape
  with opened(content) as image:
    square = squared(image, resolution)
  return as_array(square.convert("L") if channels == 1 else square)


def squared(image: Image.Image, resolution: int) -> Image.Image:
  """Returns the center square of an opened image, upright, in RGB, and resized.

  A JPEG that is much larger than needed is decoded at a fraction of its size.
  """
  image.draft(None, (2 * resolution, 2 * resolution))
  return center_square(upright_rgb(image), resolution)


def _turn(image: Image.Image) -> Image.Transpose | None:
  """Returns the rotation for an image's EXIF tag; None if not needed, or if the tag is invalid."""
  try:
    tag: Any = image.getexif().get(_ORIENTATION)
    return _TURNS.get(tag)
  except Exception:  # Pillow raises errors of many types for a broken block.
    return None


def upright_rgb(image: Image.Image) -> Image.Image:
  """Converts an image to upright RGB, by its EXIF orientation, with transparency on white.

  Returns the same object if nothing changes. Raises a ValueError for 32-bit pixels.
  """
  image.load()  # A file's header may be incomplete.
  turn = _turn(image)  # Not `ImageOps.exif_transpose`, which rewrites the EXIF block.
  upright = image if turn is None else image.transpose(turn)
  if upright.mode == "F" or (upright.mode == "I" and image.format != "PNG"):
    raise ValueError("its pixels have 32 bits, and their range is unknown; save it with 8 or 16")
  if upright.mode[0] == "I":
    # The upper 8 of 16 bits of gray, as Pillow itself reads color images.
    pixels, level = np.asarray(upright), upright.info.get("transparency")
    eight = (pixels >> 8).astype(np.uint8)
    upright = Image.fromarray(eight if level is None else np.where(pixels == level, 255, eight))
  if upright.has_transparency_data:
    upright = upright.convert("RGBA")
    if image.format == "BMP" and upright.getchannel("A").getextrema() == (0, 0):
      return upright.convert("RGB")  # BMP files often leave the alpha byte unused.
    upright = Image.alpha_composite(Image.new("RGBA", upright.size, "white"), upright)
  return upright if upright.mode == "RGB" else upright.convert("RGB")


def center_square(image: Image.Image, resolution: int) -> Image.Image:
  """Returns the center square of an image, resized to `resolution` by Pillow's bicubic filter."""
  side = min(image.size)
  left, top = (image.width - side) // 2, (image.height - side) // 2
  # Not `resize(box=...)`, whose filter reads pixels outside of the box.
  square = image.crop((left, top, left + side, top + side))
  return square.resize((resolution, resolution), Image.Resampling.BICUBIC)
