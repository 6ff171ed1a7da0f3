"""One image decoded: of any number of bits."""

import io
import struct

from models.vision.images.decode import Original, as_array, decode, opened
from replicator.app import config

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


# ---- EXIF ----------------------------------------------------------------------------------------


ORIENTATION = 0x0112


def with_exif(block):
  """A JPEG file, left half red and right half blue, with a block of EXIF; 60 x 40 pixels."""
  picture = np.zeros([40, 60, 3], np.uint8)
  picture[:, :30], picture[:, 30:] = (200, 30, 30), (30, 30, 200)
  content = encoded(picture, "JPEG", quality=95)
  return content[:2] + b"\xff\xe1" + struct.pack(">H", len(block) + 2) + block + content[2:]


def tiff(*entries, more=b""):
  """A block of EXIF with entries (tag, type, count, 4 bytes), and bytes behind them."""
  rows = b"".join(struct.pack("<HHI", *entry[:3]) + entry[3] for entry in entries)
  return (b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", len(entries)) + rows + b"\0\0\0\0" + more)


SIX = (ORIENTATION, 3, 1, b"\6\0\0\0")  # Shown after a quarter turn clockwise.


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("block, is_turned", [
    (tiff(SIX), True),
    (tiff(SIX, (0x011A, 10, 1, struct.pack("<I", 38)), more=struct.pack("<ii", -1, 0)), True),
    (tiff(SIX, (0x8298, 5, 1, struct.pack("<I", 38)), more=struct.pack("<II", 1, 0)), True),
    (tiff((ORIENTATION, 3, 1, b"\0\0\0\0")), False),
    (tiff((ORIENTATION, 3, 1, b"\x09\0\0\0")), False),
    (tiff((ORIENTATION, 2, 2, b"6\0\0\0")), False),
    (tiff((ORIENTATION, 3, 2, b"\6\0\6\0")), True),  # Pillow takes the first of two values.
    (tiff((ORIENTATION, 7, 1, b"\6\0\0\0")), False),
    (tiff(SIX)[:18], False),
    (b"Exif\0\0", False),
    (b"Exif\0\0xxxxGARBAGE", False),
    (b"Exif\0\0II*\0" + struct.pack("<I", 99999), False)])
def test_a_photo_is_upright_whatever_its_exif_is(block, is_turned):
  content = with_exif(block)
  picture = Original(opened(content), content)
  assert picture.size == ((60, 40) if is_turned else (40, 60))
  ends = decode(content, (8, 8, 3))[[0, 0, -1, -1], [0, -1, 0, -1]]
  reds = [True, True, False, False] if is_turned else [True, False, True, False]
  assert (ends[:, 0] > ends[:, 2]).tolist() == reds
  part = np.asarray(picture.part((0, 0, *picture.size), (8, 8)))
  assert (part[[0, 0, -1, -1], [0, -1, 0, -1], 0] > 100).tolist() == reds


@pytest.mark.parametrize("value", range(1, 9))
def test_each_orientation_is_turned_as_by_pillow(value):
  from PIL import ImageOps
  pixels = np.random.default_rng(value).integers(0, 256, [8, 8, 3], np.uint8)
  orientation = Image.Exif()
  orientation[ORIENTATION] = value
  content = encoded(pixels, exif=orientation)
  expected = np.asarray(ImageOps.exif_transpose(opened(content)))
  np.testing.assert_array_equal(decode(content, (8, 8, 3)), expected)


# ---- Transparency, and limits --------------------------------------------------------------------


def bitmap(alpha):
  """A red BMP file with a fourth byte for each of its 16 x 16 pixels, which has this value."""
  pixels = np.full([16, 16, 4], (30, 0, 200, alpha), np.uint8).tobytes()
  masks = struct.pack("<IIII", 0xff0000, 0xff00, 0xff, 0xff000000)
  head = struct.pack("<IiiHHIIiiII", 108, 16, 16, 1, 32, 3, len(pixels), 2835, 2835, 0, 0)
  return (b"BM" + struct.pack("<IHHI", 122 + len(pixels), 0, 0, 122) + head + masks + b"\0" * 52
          + pixels)


@pytest.mark.parametrize("alpha", [0, 255])
def test_a_bitmap_that_uses_no_alpha_is_opaque(alpha):
  assert (decode(bitmap(alpha), (4, 4, 3)) == [200, 0, 30]).all()


def test_a_png_that_is_transparent_everywhere_is_white():
  assert (decode(encoded(np.zeros([4, 4, 4], np.uint8)), (4, 4, 3)) == 255).all()


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_limit_of_pixels_is_named_and_lifted(monkeypatch):
  monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
  content = encoded(np.full([12, 12], 7, np.uint8))
  with pytest.raises(ValueError, match=r"more than 100 pixels; .* set decode\.max"):
    decode(content, (4, 4, 1))
  config.parse([], ["decode.max_pixels = 144"])
  assert (decode(content, (4, 4, 1)) == 7).all()
