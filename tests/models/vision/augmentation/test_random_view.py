"""Augmentation: a function of (seed, position), with the geometry and colors of its formulas."""

import io
import math

from models.vision.augmentation import random_view
from models.vision.augmentation.random_view import Augmentation, Augmented, TwoViews
from models.vision.builtin.digits import Digits
from models.vision.files.image_folder import ImageFolder
from models.vision.images import decode
from models.vision.images.decode import Original
from models.vision.images.image_source import InMemoryImages, read, train_validation_split
from replicator import InputContext
from replicator.training.inputs.pipeline import pipeline
from tests.programs.refusals import refusal

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
COLORS = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}
JITTER = Augmentation(**COLORS)


def photo(height: int, width: int, seed: int = 0) -> np.ndarray:
  """A smooth image with some noise, uint8 [h, w, 3]."""
  rng = np.random.default_rng(seed)
  small = rng.integers(0, 256, [4, 5, 3]).astype(np.uint8)
  smooth = np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))
  return np.clip(smooth + rng.normal(0, 6, smooth.shape), 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Twelve images of other sizes, in JPEG and PNG, gray and rotated ones too."""
  root = tmp_path_factory.mktemp("photos")
  rotated = Image.Exif()
  rotated[0x0112] = 6
  for number in range(12):
    (root / "ab"[number % 2]).mkdir(exist_ok=True)
    image = Image.fromarray(photo(40 + 3 * number, 70 - 4 * number, number))
    image = image.convert("L") if number == 5 else image
    image.save(root / "ab"[number % 2] / f"{number}.{'png' if number % 4 == 3 else 'jpg'}",
               **({"exif": rotated} if number == 4 else {}))
  return str(root)


def augmented(folder: str, **settings) -> Augmented:
  return Augmented(lambda: ImageFolder(folder, 16, memory_limit=0, **settings), lambda: JITTER)


def stream(source, steps: int, first_step: int = 0, workers: int = 1, replicas: int = 1,
           seed: int = 3) -> np.ndarray:
  """The images of some global batches, [steps, 8, h, w, c]."""
  parts = [pipeline(source, InputContext(8, worker, workers, replicas, seed), first_step)
           for worker in range(workers)]
  return np.stack([np.concatenate([batch["image"] for batch in row]) for row in zip(*(
      part.take(steps).as_numpy_iterator() for part in parts), strict=True)])


# ---- A function of (seed, position) -------------------------------------------------------------


def test_batches_are_the_same_on_any_number_of_replicas_and_workers_and_after_a_resume(folder):
  source = augmented(folder)
  whole = stream(source, 3)
  np.testing.assert_array_equal(stream(source, 2, 0, 2, 4), whole[:2])
  np.testing.assert_array_equal(stream(augmented(folder), 2, 1, 1, 2), whole[1:])


def test_the_pipeline_shows_what_the_function_makes_of_seed_and_position(folder):
  kept = Augmented(lambda: InMemoryImages(photo(24, 24)[np.newaxis], np.zeros(1), ("a",)),
                   lambda: JITTER)
  found = stream(kept, 2, seed=7).reshape(16, 24, 24, 3)
  picture = Original.of_array(photo(24, 24))
  for position, image in enumerate(found):
    np.testing.assert_array_equal(image, JITTER(picture, (24, 24, 3), 7, position))


# Philox4x64-10 with the key (3, 5), as `numpy.random.Philox` of NumPy 2.4 has it.
GOLDEN = [0.08910064623458391, 0.33189185276481004, 0.6390124250337372]


def test_the_numbers_are_those_that_they_always_were():
  np.testing.assert_array_equal(random_view.uniform(3, 5)[[0, 1, 30]], GOLDEN)


# ---- The geometry -------------------------------------------------------------------------------


def test_boxes_are_those_of_the_formula():
  checked = 0
  for position in range(300):
    draws = random_view.uniform(1, position)
    height, width = 60 + position % 7, 80 - position % 11
    for area, aspect in zip(draws[0:20:2], draws[1:20:2], strict=True):
      area = height * width * (0.08 + 0.92 * area)
      aspect = math.exp(math.log(3 / 4) + aspect * (math.log(4 / 3) - math.log(3 / 4)))
      w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
      if w <= width and h <= height:
        top, left = (math.floor(draws[20] * (height - h + 1)),
                     math.floor(draws[21] * (width - w + 1)))
        assert random_view.random_box((height, width), SCALE, RATIO, draws) == (top, left, h, w)
        checked += 1
        break
  assert checked > 290


@pytest.mark.parametrize("size, box", [((10, 100), (0, 43, 10, 13)), ((100, 10), (43, 0, 13, 10)),
                                       ((1, 1), (0, 0, 1, 1))])
def test_where_no_crop_fits_it_is_central(size, box):
  assert random_view.random_box(size, (1.0, 1.0), RATIO, np.full(31, 0.5)) == box


@pytest.mark.parametrize("mode, options, beside", [
    ("RGB", {}, 0), ("RGB", {"progressive": True}, 0), ("RGB", {"subsampling": 0}, 0), ("L", {}, 0),
    ("RGB", {}, 2 ** 18)])
def test_a_part_of_a_jpeg_is_that_of_the_whole_image(mode, options, beside, monkeypatch):
  """However large a file must be, so that its parts alone are decoded."""
  monkeypatch.setattr(decode, "_MANY", beside)
  file = io.BytesIO()
  Image.fromarray(photo(150, 190)).convert(mode).save(file, "JPEG", **options)
  whole = Original.of_array(np.asarray(Image.open(file).convert("RGB")))
  picture = Original(Image.open(file), file.getvalue())
  rng = np.random.default_rng(0)
  for _ in range(20):
    h, w = rng.integers(1, 128, 2)
    box = tuple(map(int, (rng.integers(151 - h), rng.integers(191 - w), h, w)))
    np.testing.assert_array_equal(picture.part(box, (33, 33)), whole.part(box, (33, 33)))


def test_a_part_that_is_much_too_large_is_decoded_at_a_fraction_of_its_size():
  ramp = np.broadcast_to(np.arange(256, dtype=np.uint8)[None, :, None], [256, 256, 3])
  file = io.BytesIO()
  Image.fromarray(ramp).save(file, "JPEG", quality=95)
  turned, orientation = io.BytesIO(), Image.Exif()
  orientation[0x0112] = 3  # Upside down.
  Image.fromarray(ramp[::-1, ::-1]).save(turned, "JPEG", quality=95, exif=orientation)
  for content in (file, turned):
    part = np.asarray(Original(Image.open(content), content.getvalue()).part(
        (8, 64, 240, 160), (10, 10)), float)
    np.testing.assert_allclose(  # The filter is cut off at the sides.
        part[:, 1:-1, 0], np.tile(64 + 16 * np.arange(1, 9) + 7.5, [10, 1]), atol=2)


# ---- Flips and colors ---------------------------------------------------------------------------


def test_without_a_crop_images_are_as_loaded_and_half_are_mirrored(folder):
  source = Augmented(lambda: ImageFolder(folder, 16), lambda: Augmentation(scale=None))
  loaded = read(source, np.arange(12))[0]
  mirrored = 0
  for image in stream(source, 6).reshape(48, 16, 16, 3):
    straight, flipped = ((loaded == each).all((1, 2, 3)).any() for each in (image, image[:, ::-1]))
    assert straight != flipped
    mirrored += flipped
  assert 12 < mirrored < 36


def luminance(pixels: np.ndarray) -> np.ndarray:
  return pixels @ [0.299, 0.587, 0.114]


@pytest.mark.parametrize("name, reference", [
    ("brightness", lambda x: 0.0), ("contrast", lambda x: luminance(x).mean()),
    ("saturation", lambda x: luminance(x)[..., None])])
def test_factors_multiply_distances_from_what_torchvision_takes(name, reference):
  pixels = photo(20, 20)
  flat = Augmentation(scale=None, flip=0.0, **{name: 0.4})
  factors = set()
  for position in range(20):
    found = flat(Original.of_array(pixels), pixels.shape, 0, position).astype(float)
    x, base = pixels.astype(float), reference(pixels.astype(float))
    number = list(COLORS).index(name)
    factor = 0.6 + 0.8 * random_view.uniform(0, position)[random_view._COLOR + number]
    assert np.abs(found - np.clip(base + factor * (x - base), 0, 255)).max() < 2.1
    factors.add(factor)
  assert min(factors) < 0.8 and max(factors) > 1.2


def test_changes_of_the_color_come_in_an_order_of_each_position():
  pixels, shape, orders = photo(12, 12), (12, 12, 3), set()
  singles = [Augmentation(scale=None, flip=0.0, **{name: value}) for name, value in COLORS.items()]
  whole = Augmentation(scale=None, flip=0.0, **COLORS)
  for position in range(8):
    expected, order = pixels, np.argsort(random_view.uniform(0, position)[-4:])
    for number in order:
      expected = singles[number](Original.of_array(expected), shape, 0, position)
    np.testing.assert_array_equal(whole(Original.of_array(pixels), shape, 0, position), expected)
    orders.add(tuple(order))
  assert len(orders) > 5


def test_the_hue_is_turned():
  red = np.full([4, 4, 3], [200, 20, 20], np.uint8)
  turned = random_view._turned(Image.fromarray(red), 1 / 3)
  np.testing.assert_allclose(np.asarray(turned)[0, 0], [20, 200, 20], atol=3)
  gray = Image.fromarray(red[..., 0])
  assert random_view._turned(gray, 0.3) is gray


def test_gray_images_stay_gray():
  picture = Original.of_array(photo(9, 9)[..., :1])
  assert JITTER(picture, (8, 8, 1), 0, 0).shape == (8, 8, 1)


# ---- Sources ------------------------------------------------------------------------------------


def test_an_evaluation_sees_the_center_and_nothing_random(folder):
  source = Augmented(lambda: ImageFolder(folder, 16), lambda: JITTER, center_crop=0.875)
  first = read(source, np.arange(12))[0]
  np.testing.assert_array_equal(read(source, np.arange(12))[0], first)
  with Image.open(f"{folder}/a/0.jpg") as image:  # 40 x 70: 35 x 35 in the middle.
    middle = image.crop((17, 2, 52, 37)).resize((16, 16), Image.Resampling.BILINEAR)
  np.testing.assert_array_equal(first[0], middle)


def test_of_a_source_in_two_parts_only_the_one_that_is_trained_on_is_augmented(folder):
  train_on, held_out = train_validation_split(augmented(folder), 0.25)
  assert not (stream(train_on, 1) == stream(train_on, 1, 1)).all()
  plain = train_validation_split(ImageFolder(folder, 16), 0.25)[1]
  np.testing.assert_array_equal(read(held_out, np.arange(3))[0], read(plain, np.arange(3))[0])


def test_the_part_that_is_trained_on_has_no_image_of_the_other(folder):
  images = np.broadcast_to(np.arange(12, dtype=np.uint8)[:, None, None, None], [12, 4, 4, 3])
  source = Augmented(lambda: InMemoryImages(images, np.arange(12), tuple("abcdefghijkl")))
  for part in train_validation_split(source, 0.25):
    own = set(read(part, np.arange(part.size))[0].ravel())
    assert set(stream(part, 6).ravel()) == own and len(own) == part.size


def test_a_corrupt_file_ends_the_run_or_gives_way_to_the_next(folder, tmp_path):
  (tmp_path / "a").mkdir()
  for number in range(3):
    Image.fromarray(photo(40, 40, number)).save(tmp_path / "a" / f"{number}.jpg")
  torn = tmp_path / "a" / "1.jpg"
  torn.write_bytes(torn.read_bytes()[:-300])
  assert refusal(stream, augmented(str(tmp_path)), 1).startswith(
      f"{torn} cannot be read as an image (image file is truncated")
  seed = tf.constant([0, 5], tf.int64)
  for limit in (0, 10_000):
    source = Augmented(lambda limit=limit: ImageFolder(str(tmp_path), 16, "skip", limit),
                       lambda: JITTER)
    last = source.augmented(tf.constant(source.size - 1, tf.int64), seed)["image"]
    np.testing.assert_array_equal(
        last, JITTER(Original(Image.open(tmp_path / "a" / "2.jpg")), (16, 16, 3), 0, 5))
  drawn = Augmented(lambda: ImageFolder(str(tmp_path), 16, "skip", 0), lambda: JITTER)
  np.testing.assert_array_equal(
      drawn.augmented(tf.constant(1, tf.int64), seed)["image"], last)


# ---- Two views ----------------------------------------------------------------------------------


ONE = Augmented(Digits, lambda: Augmentation(scale=(0.6, 0.9), brightness=0.2))
BOTH = TwoViews(lambda: ONE)


def test_the_second_view_is_another_one_of_the_same_image():
  batch, one = (next(pipeline(source, InputContext(8, seed=3)).as_numpy_iterator())
                for source in (BOTH, ONE))
  np.testing.assert_array_equal(batch["image"], one["image"])
  np.testing.assert_array_equal(batch["label"], one["label"])
  assert batch["other"].shape == batch["image"].shape == (8, 8, 8, 1)
  assert (batch["other"] != batch["image"]).any(axis=(1, 2, 3)).all()
  # Views of one image are more alike than those of different images.
  a, b = (batch[name].reshape(8, -1).astype(float) for name in ("image", "other"))
  distances = np.abs(a[:, None] - b[None]).mean(-1)
  assert np.diag(distances).mean() < 0.8 * distances.mean()


def test_an_evaluation_sees_the_image_itself():
  np.testing.assert_array_equal(read(BOTH, np.arange(3))[0], read(Digits(), np.arange(3))[0])
  assert BOTH.digest() == ONE.digest() and BOTH.size == ONE.size
