"""Image sources in memory, and conversions between bytes and network inputs."""

import sys

from models.vision.images.image_source import (
  InMemoryImages,
  hold_out,
  read,
  to_uint8,
  to_unit_range,
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
  assert len(source.files) >= 3 and set(source.files) == {__file__}


# ---- Parts of a source --------------------------------------------------------------------------


IMAGES = np.arange(20, dtype=np.uint8)[:, None, None, None] * np.ones([1, 2, 3, 1], np.uint8)
SOURCE = InMemoryImages(IMAGES, np.arange(20) % 2, ("even", "odd"))


def test_every_image_is_in_one_part_and_the_parts_are_always_the_same():
  parts = hold_out(SOURCE, 0.3)
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
  again = hold_out(SOURCE, 0.3)[1]
  assert read(again, np.arange(6))[0][:, 0, 0, 0].tolist() == numbers[1]


def test_a_part_tells_its_examples_from_others():
  digested = InMemoryImages(IMAGES, np.zeros(20), ("one",))
  digested.digest = lambda: "of all"
  part, rest = hold_out(digested, 0.3)
  parts = [part.digest(), rest.digest(), hold_out(digested, 0.4)[0].digest()]
  assert len({*parts, "of all"}) == 4 and hold_out(digested, 0.3)[0].digest() == parts[0]
  assert hold_out(SOURCE, 0.3)[0].digest() is None  # Arrays of a program are not known by a name.
