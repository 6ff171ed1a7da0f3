"""The common parts of extractors: which images they take, their batches, and the bicubic filter."""

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from models.metrics.extractors.extractor import bicubic, check, in_batches
from replicator.errors import UsageError


def noise(*shape: int) -> np.ndarray:
  return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


@pytest.mark.parametrize("images, message", [
    (np.zeros([2, 8, 8, 3]), "type float64: write uint8 from 0 to 255"),
    (np.zeros([2, 8, 8, 3], np.int32), "type int32"),
    (noise(2, 8, 8, 1), r"\[2, 8, 8, 1\]: write an array .* of gray ones, np.repeat"),
    (noise(2, 3, 8, 8), r"\[2, 3, 8, 8\]: write an array"),
    (noise(8, 8, 3), r"\[8, 8, 3\]: write an array"),
    (noise(0, 8, 8, 3), r"\[0, 8, 8, 3\]: .*at least one"),
])
def test_what_is_not_rgb_is_refused(images, message):
  with pytest.raises(UsageError, match=message):
    check(images)


def test_batches_are_joined_in_order():
  images = noise(130, 2, 2, 3)
  sizes = []

  def forward(batch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    sizes.append(len(batch))
    numbers = tf.cast(tf.reshape(batch, [len(batch), 12]), tf.float16)
    return numbers, 2 * numbers

  features, logits = in_batches(forward, images)
  assert sizes == [64, 64, 2]
  assert features.dtype == logits.dtype == np.float32
  np.testing.assert_array_equal(features, images.reshape(130, 12))
  np.testing.assert_array_equal(logits, 2 * features)


@pytest.mark.parametrize("size", [(20, 20), (100, 60), (300, 500)])
def test_the_bicubic_filter_is_that_of_pillow(size):
  images = noise(1, *size, 3)
  resized = [Image.fromarray(images[0, ..., c].astype(np.float32)).resize(
      (64, 64), Image.Resampling.BICUBIC) for c in range(3)]
  np.testing.assert_allclose(bicubic(images, 64)[0], np.stack(resized, -1), atol=0.01)
