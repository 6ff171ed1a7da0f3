"""One image decoded: of any number of bits."""

import io

from models.vision.images.decode import Original, as_array, decode, opened

import numpy as np
import pytest
from PIL import Image

LEVELS = np.random.default_rng(0).integers(0, 2 ** 16, [8, 8], np.uint16)


def encoded(pixels, kind="PNG", **options):
  file = io.BytesIO()
  Image.fromarray(pixels).save(file, kind, **options)
  return file.getvalue()


@pytest.mark.parametrize("channels", [1, 3])
def test_of_16_bits_the_upper_8_are_kept(channels):
  gray = np.repeat((LEVELS >> 8)[..., None], channels, -1)
  for content in (encoded(LEVELS), encoded(LEVELS, "TIFF"), encoded(LEVELS.astype(">u2"), "TIFF")):
    np.testing.assert_array_equal(decode(content, (8, 8, channels)), gray)
    part = Original(opened(content), content).part((0, 0, 8, 8), (8, 8))
    np.testing.assert_array_equal(as_array(part.convert("L")), gray[..., :1])
  orientation = Image.Exif()
  orientation[0x0112] = 3  # Upside down.
  np.testing.assert_array_equal(
      decode(encoded(LEVELS, exif=orientation), (8, 8, channels)), gray[::-1, ::-1])


def test_a_transparent_level_becomes_white():
  for levels in (LEVELS, (LEVELS >> 8).astype(np.uint8)):
    level = int(levels[2, 5])
    content = encoded(levels, transparency=level)
    expected = np.where(levels == level, 255, LEVELS >> 8)
    np.testing.assert_array_equal(decode(content, (8, 8, 1))[..., 0], expected)


def test_parts_of_a_picture_do_not_depend_on_those_before():
  pixels = np.random.default_rng(1).integers(0, 256, [6, 6, 3], np.uint8)
  content = encoded(np.kron(pixels, np.ones([40, 40, 1], np.uint8)), "JPEG")
  boxes = (((0, 0, 240, 240), (8, 8)), ((120, 120, 100, 100), (60, 60)))
  fresh = [np.asarray(Original(opened(content), content).part(*box)) for box in boxes]
  picture = Original(opened(content), content)
  for box, expected in zip((*boxes, boxes[0]), (*fresh, fresh[0]), strict=True):
    np.testing.assert_array_equal(np.asarray(picture.part(*box)), expected)


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_pixels_of_32_bits_are_refused(kind):
  with pytest.raises(ValueError, match="its pixels have 32 bits, and their range is unknown; save"):
    decode(encoded(LEVELS.astype(kind), "TIFF"), (8, 8, 3))
