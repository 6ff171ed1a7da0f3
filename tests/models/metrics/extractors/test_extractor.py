"""The common parts of extractors: their batches, and the bicubic filter."""

from models.metrics.extractors.extractor import bicubic, in_batches

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image


def noise(*shape: int) -> np.ndarray:
  return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


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
