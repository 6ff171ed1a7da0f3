"""Colored shapes: determinism and classes."""

from models.vision.builtin.shapes import Shapes
from models.vision.images.image_source import read

import numpy as np
import pytest
import tensorflow as tf


@pytest.fixture(scope="module")
def drawn():
  """The first images and labels of `Shapes(32)`."""
  return read(Shapes(32), np.arange(240))


def test_every_example_has_a_static_shape():
  source = Shapes(33, size=10)
  assert (source.size, source.image_shape) == (10, (33, 33, 3))
  spec = tf.data.Dataset.range(10).map(source.load).element_spec
  assert spec["image"] == tf.TensorSpec([33, 33, 3], tf.uint8)
  assert spec["label"] == tf.TensorSpec([], tf.int32)


def test_label_is_a_function_of_the_index_and_classes_are_balanced(drawn):
  source = Shapes()
  assert source.num_classes == 12
  assert drawn[1].tolist() == list(range(12)) * 20
  assert source.class_names[0] == "red circle" and source.class_names[11] == "blue cross"


def test_images_are_distinct_and_reproducible(drawn):
  again, _ = read(Shapes(32), np.arange(240)[::-7])
  np.testing.assert_array_equal(again, drawn[0][::-7])
  assert len(np.unique(drawn[0], axis=0)) == 240


def test_image_is_pinned():
  # A middle row of image 0, computed by this code, so that training data cannot change unnoticed.
  # The tolerance is one level, because the last bit of a cosine differs between machines.
  expected = [[36, 25, 34], [40, 25, 35], [161, 35, 60], [206, 38, 68],
              [209, 38, 69], [139, 34, 56], [37, 24, 33], [34, 24, 32]]
  row = Shapes(8).load(tf.constant(0, tf.int64))["image"][4].numpy().astype(int)
  np.testing.assert_allclose(row, expected, rtol=0, atol=1)


def test_the_color_of_the_shape_is_the_color_of_the_class(drawn):
  images, labels = drawn
  brightest = images.max(-1).reshape(240, -1).argsort(-1)[:, -50:]
  pixels = np.take_along_axis(images.reshape(240, -1, 3), brightest[..., None], 1).mean(1)
  assert (pixels.argmax(-1) == labels % 3).all()


def test_an_outline_is_that_of_the_filled_shape_of_its_index(drawn):
  outlined, labels = read(Shapes(32, outlined=True), np.arange(240))
  np.testing.assert_array_equal(labels, drawn[1])
  corners = (slice(None), slice(None, None, 31), slice(None, None, 31))
  np.testing.assert_array_equal(outlined[corners], drawn[0][corners])
  # Squares are darker in the middle, and nowhere brighter.
  change = outlined.max(-1).astype(int)[labels // 3 == 1] - drawn[0].max(-1)[labels // 3 == 1]
  assert change[:, 14:18, 14:18].mean() < -80 and change.max() <= 0
