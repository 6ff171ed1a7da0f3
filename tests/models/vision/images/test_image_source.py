"""Image sources in memory, and conversions between bytes and network inputs."""

import sys

from models.vision.images.image_source import (
  InMemoryImages,
  Subset,
  read,
  to_uint8,
  to_unit_range,
  train_validation_split,
)
from models.vision.sources import EncodedExamples

import numpy as np
import pytest
import tensorflow as tf

LEVELS = np.arange(256, dtype=np.uint8)


def small_source():
  images = np.arange(5 * 2 * 3, dtype=np.uint8).reshape(5, 2, 3, 1)
  return InMemoryImages(images, np.array([0, 1, 0, 2, 1]), ("a", "b", "c")), images


@pytest.mark.parametrize("dtype, tolerance", [("float64", 0), ("float32", 1e-7),
                                              ("bfloat16", 2**-9), ("float16", 2**-12)])
def test_to_unit_range_is_linear_from_minus_one_to_one(dtype, tolerance):
  result = to_unit_range(LEVELS, dtype)
  assert result.dtype == dtype
  expected = LEVELS.astype(np.float64) / 127.5 - 1.0
  np.testing.assert_allclose(tf.cast(result, tf.float64), expected, rtol=0, atol=tolerance)
  assert result[0] == -1 and result[-1] == 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_to_uint8_undoes_to_unit_range(dtype):
  np.testing.assert_array_equal(to_uint8(to_unit_range(LEVELS, dtype)), LEVELS)


def test_to_uint8_rounds_clips_and_survives_nan():
  levels = np.array([-300.0, 0.4, 0.6, 254.6, 300.0, np.inf, -np.inf, np.nan])
  np.testing.assert_array_equal(to_uint8(levels / 127.5 - 1.0), [0, 0, 1, 255, 255, 255, 0, 0])
  assert to_uint8(tf.zeros([2], tf.bfloat16)).numpy().tolist() == [128, 128]


def test_load_has_static_shapes_in_a_pipeline():
  source, _ = small_source()
  assert (source.size, source.image_shape, source.num_classes) == (5, (2, 3, 1), 3)
  assert source.class_names == ("a", "b", "c")
  spec = tf.data.Dataset.range(5).map(source.load).batch(2, drop_remainder=True).element_spec
  assert spec["image"] == tf.TensorSpec([2, 2, 3, 1], tf.uint8)
  assert spec["label"] == tf.TensorSpec([2], tf.int32)


def test_load_writes_no_image_into_the_graph():
  source = InMemoryImages(np.zeros([100, 32, 32, 3], np.uint8), np.zeros(100, int), ("a",))
  load = tf.function(source.load).get_concrete_function(tf.TensorSpec([], tf.int64))
  assert load.graph.as_graph_def().ByteSize() < 10_000


def test_read_keeps_the_order_of_the_indices():
  source, images = small_source()
  order = np.tile([4, 0, 2, 2], 100)  # More than one batch of the reader.
  read_images, labels = read(source, order)
  np.testing.assert_array_equal(read_images, images[order])
  np.testing.assert_array_equal(labels, np.array([0, 1, 0, 2, 1])[order])


def test_read_waits_for_no_thread_that_tunes_its_pipeline(monkeypatch):
  tuned, iterate = [], tf.data.Dataset.__iter__

  def record(dataset):
    tuned.append(dataset.options().autotune.enabled)
    return iterate(dataset)
  monkeypatch.setattr(tf.data.Dataset, "__iter__", record)
  read(small_source()[0], np.arange(3))
  assert tuned == [False]


class Recorded(InMemoryImages):
  """Keeps the files whose code draws its examples."""

  def load(self, index):
    self.files.append(sys._getframe().f_code.co_filename)
    return super().load(index)


def test_no_source_is_converted_by_autograph_where_it_is_read():
  source = Recorded(small_source()[1], np.array([0, 1, 0, 2, 1]), ("a", "b", "c"))
  source.files = []
  read(source, np.arange(5))  # Functions of NumPy that a source calls would be converted, too.
  EncodedExamples(source, "images").read(0)
  assert len(source.files) >= 2 and set(source.files) == {__file__}


# ---- Parts of a source --------------------------------------------------------------------------


IMAGES = np.arange(20, dtype=np.uint8)[:, None, None, None] * np.ones([1, 2, 3, 1], np.uint8)
SOURCE = InMemoryImages(IMAGES, np.arange(20) % 2, ("even", "odd"))


def test_every_image_is_in_one_part_and_the_parts_are_always_the_same():
  parts = train_validation_split(SOURCE, 0.3)
  assert [part.size for part in parts] == [14, 6]
  numbers = []
  for part in parts:
    images, labels = read(part, np.arange(part.size))
    assert part.image_shape == images.shape[1:] == (2, 3, 1)
    assert part.class_names == ("even", "odd") and part.num_classes == 2
    np.testing.assert_array_equal(images[:, 0, 0, 0] % 2, labels)
    numbers.append(images[:, 0, 0, 0].tolist())
  assert sorted(numbers[0] + numbers[1]) == list(range(20))
  assert numbers[1] != sorted(numbers[1])  # A permutation, in case the source is sorted by class.
  again = train_validation_split(SOURCE, 0.3)[1]
  assert read(again, np.arange(6))[0][:, 0, 0, 0].tolist() == numbers[1]


def test_a_part_tells_its_examples_from_others():
  digested = InMemoryImages(IMAGES, np.zeros(20), ("one",))
  digested.digest = lambda: "of all"
  part, rest = train_validation_split(digested, 0.3)
  parts = [part.digest(), rest.digest(), train_validation_split(digested, 0.4)[0].digest()]
  assert len({*parts, "of all"}) == 4
  assert train_validation_split(digested, 0.3)[0].digest() == parts[0]
  # Arrays of a program are not known by a name.
  assert train_validation_split(SOURCE, 0.3)[0].digest() is None


@pytest.mark.parametrize("sizes, share, held", [
    ([2] * 30, 0.2, [1] * 30),  # At least one of each class is measured, and one is trained on.
    ([60, 60, 1], 0.2, [12, 12, 0]),  # The only image of a class is trained on.
    ([90, 10], 0.3, [27, 3]),
    ([12] * 1000, 0.2, [3] * 400 + [2] * 600),  # 2,400 in all, by the largest remainders.
    ([5], 0.4, [2]), ([3, 2], 0.2, [1, 1]), ([0, 4, 4], 0.9, [0, 3, 3])])
def test_each_class_gives_its_share(sizes, share, held):
  labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
  source = InMemoryImages(np.zeros([len(labels), 1, 1, 1]), labels, tuple(map(str, sizes)))
  trained, measured = train_validation_split(source, share)
  assert np.bincount(measured.labels, minlength=len(sizes)).tolist() == held
  assert np.bincount(trained.labels, minlength=len(sizes)).tolist() == np.subtract(
      sizes, held).tolist()


def test_what_a_small_class_changes_is_said(caplog):
  train_validation_split(
      InMemoryImages(np.zeros([4, 1, 1, 1]), np.array([0, 0, 1, 1]), ("a", "b")), 0.25)
  assert caplog.messages == [
      "validation_split = 0.25: 2 of 4 images are held out, since each class has some in both "
      "parts, or its only image in the training part"]
  trained, measured = train_validation_split(
      InMemoryImages(np.zeros([4, 1, 1, 1]), np.arange(4), tuple("abcd")), 0.25)
  assert (trained.size, measured.size, len(caplog.messages)) == (3, 1, 1)


def test_a_source_describes_its_classes():
  labels = np.array([0, 1, 1, 2, 2])
  source = InMemoryImages(np.zeros([5, 1, 1, 1]), labels, ("cat", "dog", "owl"))
  assert source.describe() == "3 classes: cat, dog, owl, the smallest cat with 1"
  assert Subset(source, np.array([0, 3, 4])).describe() == (
      "3 classes: cat, dog, owl, the smallest dog with 0")
  assert InMemoryImages(np.zeros([5, 1, 1, 1]), np.zeros(5), ("all",)).describe() == "1 class: all"
