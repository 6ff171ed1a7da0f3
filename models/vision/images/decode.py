"""One image: decoded, cropped and resized; of a large JPEG file, only a crop is decoded."""

import io
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from PIL import Image, ImageOps, UnidentifiedImageError

Shape = tuple[int, int, int]
"""Height, width and channels of an image."""

Box = tuple[int, int, int, int]
"""Top, left, height and width of a part of an image, in pixels."""

View = Callable[["Original", Shape, int, int], np.ndarray]
"""Makes an example of a picture: `(picture, image_shape, seed, position) -> uint8 image_shape`.

The seed is that of the run, and the position is that in the order of training.
"""

_ORIENTATION = 0x0112  # The EXIF tag; 1 is upright, and from 5 on the sides are exchanged.
_MARGIN = 2  # Pixels beside a crop that change its own, where colors have fewer samples.
_MANY = 2 ** 18  # Pixels beside a crop, from which on not to decode them saves time.


class Original:
  """A whole image, of which parts are cut out and resized.

  A part of a JPEG file has the pixels that it has in the whole image, though of a large file only
  the part is decoded. One that is much too large is decoded at a fraction of its size. `size` has
  the height and the width, as a person sees the image.
  """

  def __init__(self, image: Image.Image, content: bytes = b"") -> None:
    """Takes an image of Pillow; and the content of its file, if it is not decoded yet."""
    self._image = image
    self._content = content
    orientation = image.getexif().get(_ORIENTATION, 1)
    width, height = image.size
    self.size = (width, height) if orientation >= 5 else (height, width)
    self._is_simple = image.format == "JPEG" and orientation == 1 and image.mode in ("L", "RGB")

  @classmethod
  def of_array(cls, pixels: np.ndarray) -> "Original":
    """An image that is decoded, uint8 `[h, w, 1 or 3]`."""
    return cls(as_image(pixels))

  def part(self, box: Box, size: tuple[int, int]) -> Image.Image:
    """A part resized to `size` (height, width) by Pillow's bilinear filter, in RGB or gray.

    Files are read as by `decode`, which says what it raises.
    """
    shrinking = max((k for k in (2, 4, 8) if self._image.format == "JPEG"
                     and min(box[2] // size[0], box[3] // size[1]) >= 2 * k), default=1)
    top, left, height, width = (edge // shrinking for edge in box)
    part = self._cut((top, left, height, width), shrinking)
    return part.resize(size[::-1], Image.Resampling.BILINEAR)

  def _cut(self, box: Box, shrinking: int) -> Image.Image:
    """A part of the image that is decoded at a fraction of its size, in pixels of that."""
    top, left, height, width = box
    image = self._image
    beside = image.width * image.height // shrinking ** 2 - width * height
    if self._is_simple and beside >= _MANY:
      try:
        return self._decoded_part(box, shrinking)
      except tf.errors.InvalidArgumentError:
        pass  # Pillow says better what is wrong.
    if self._content:
      image = opened(self._content)  # Another part may be decoded at another size.
      image.draft(None, (image.width // shrinking, image.height // shrinking))
      image = upright_rgb(image)
    return image.crop((left, top, left + width, top + height))

  def _decoded_part(self, box: Box, shrinking: int) -> Image.Image:
    """The pixels that Pillow gives in the whole image; TensorFlow can decode a part alone."""
    top, left, height, width = box
    before = min(left, _MARGIN)
    after = min(-(-self._image.width // shrinking) - left - width, _MARGIN)
    with tf.device("CPU:0"):
      pixels = tf.io.decode_and_crop_jpeg(
          self._content, [top, left - before, height, before + width + after], channels=3,
          ratio=shrinking, dct_method="INTEGER_ACCURATE").numpy()
    return Image.fromarray(pixels[:, before:before + width])


def opened(content: bytes) -> Image.Image:
  """An image file, of which Pillow has read the head; raises a ValueError if it is none."""
  try:
    return Image.open(io.BytesIO(content))
  except UnidentifiedImageError:  # Its message names the buffer.
    raise ValueError("its content is not that of an image") from None


def as_image(pixels: np.ndarray) -> Image.Image:
  """An image in RGB or gray, of uint8 `[h, w, 3 or 1]`."""
  return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def as_array(image: Image.Image) -> np.ndarray:
  """The pixels of an image in RGB or gray, uint8 `[h, w, 3 or 1]`."""
  pixels = np.asarray(image)
  return pixels[..., np.newaxis] if pixels.ndim == 2 else pixels


def decode(content: bytes, image_shape: Shape) -> np.ndarray:
  """The center square of an encoded image, resized: uint8 `image_shape`, which is [r, r, 1 or 3].

  Images are rotated by their EXIF orientation, transparency becomes white, and an animation gives
  its first frame. Gray becomes RGB, or colors become their luminance (ITU-R 601). Of 16 bits, the
  upper 8 are kept. Pillow raises errors of many types for a broken image.
  """
  resolution, _, channels = image_shape
  with opened(content) as image:
    # A JPEG that is much too large is decoded at a fraction of its size.
    image.draft(None, (2 * resolution, 2 * resolution))
    square = center_square(upright_rgb(image), resolution)
  return as_array(square.convert("L") if channels == 1 else square)


def upright_rgb(image: Image.Image) -> Image.Image:
  """An image rotated by its EXIF orientation, in RGB, on white where it is transparent.

  It is the same object, if nothing is to change. Raises a ValueError for pixels of 32 bits.
  """
  image.load()  # The head of a file may not say all.
  upright = image if image.getexif().get(_ORIENTATION, 1) == 1 else ImageOps.exif_transpose(image)
  if upright.mode == "F" or (upright.mode == "I" and image.format != "PNG"):
    raise ValueError("its pixels have 32 bits, and their range is unknown; save it with 8 or 16")
  if upright.mode[0] == "I":
    # The upper 8 of 16 bits of gray, as Pillow itself reads them of an image with colors.
    pixels, level = np.asarray(upright), upright.info.get("transparency")
    eight = (pixels >> 8).astype(np.uint8)
    upright = Image.fromarray(eight if level is None else np.where(pixels == level, 255, eight))
  if upright.has_transparency_data:
    upright = upright.convert("RGBA")
    upright = Image.alpha_composite(Image.new("RGBA", upright.size, "white"), upright)
  return upright if upright.mode == "RGB" else upright.convert("RGB")


def center_square(image: Image.Image, resolution: int) -> Image.Image:
  """The center square of an image, resized to `resolution` by Pillow's bicubic filter."""
  side = min(image.size)
  left, top = (image.width - side) // 2, (image.height - side) // 2
  # Not `resize(box=...)`, whose filter reads pixels outside of the box.
  square = image.crop((left, top, left + side, top + side))
  return square.resize((resolution, resolution), Image.Resampling.BICUBIC)
