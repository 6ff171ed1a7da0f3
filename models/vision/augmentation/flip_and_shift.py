"""Shifts by whole pixels, and the augmentation of consistency regularization."""

from replicator import random

import gin
import tensorflow as tf


def shift(images: tf.Tensor, rows: tf.Tensor, columns: tf.Tensor, reflect: bool = False
          ) -> tf.Tensor:
  """Shifts each image by whole pixels, down and to the right: `[n, h, w, c] -> [n, h, w, c]`.

  It multiplies floats by permutation matrices, whose gradients are equally fast, and are
  deterministic on any device. Rows and columns are int32 [n]. `reflect` fills the border with the
  reflected image, instead of zeros.
  """
  _, h, w, _ = images.shape
  down = _taken(h, rows, reflect, images.dtype)
  right = _taken(w, columns, reflect, images.dtype)
  return tf.einsum("nyh,nhwc,nxw->nyxc", down, images, right)


def _taken(size: int, offsets: tf.Tensor, reflect: bool, dtype: tf.DType) -> tf.Tensor:
  """Returns matrices `[n, size, size]` with a one where output i takes input j = i - offset."""
  source = tf.range(size) - offsets[:, tf.newaxis]
  if reflect:
    source = reflected(source, size)
  return tf.one_hot(source, size, dtype=dtype)  # Zeros for sources outside of the image.


def reflected(positions: tf.Tensor, size: int) -> tf.Tensor:
  """Reflects positions into `[0, size - 1]`, at an image's outer pixels."""
  period = 2 * (size - 1)
  within = positions % period
  return tf.minimum(within, period - within)


@gin.configurable
class FlipAndShift:
  """Augmentation that flips half of the images, and shifts all by up to an eighth of their size.

  The border is filled by reflection, as in Zhang et al. 2020 (arXiv:1910.12027), section 3.1:
  `[n, h, w, c] -> [n, h, w, c]`.
  """

  def __call__(self, images: tf.Tensor) -> tf.Tensor:
    n, h, w, _ = images.shape
    is_mirrored = random.bernoulli("flip_and_shift", [n, 1, 1, 1], 0.5)
    images = tf.where(is_mirrored, tf.reverse(images, [2]), images)
    rows, columns = (random.uniform("flip_and_shift", [n], -limit, limit + 1, "int32")
                     for limit in (h // 8, w // 8))
    return shift(images, rows, columns, reflect=True)

  def observe(self, real_scores: tf.Tensor) -> None:
    """Does nothing: this augmentation does not adapt."""
