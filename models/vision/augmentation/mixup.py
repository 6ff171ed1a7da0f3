"""MixUp and CutMix: mixtures of two training images and of their labels.

Example i is mixed with its neighbor, i + 1 if i is even and i - 1 otherwise. The order of the
examples is random, so these pairs are as good as any. Both examples of a pair are on the same
replica, so mixtures are the same on any number of replicas. Each example draws its own share,
whereas the papers draw one for the whole batch.

Both are called with images `[n, h, w, c]` and class weights `[n, num_classes]`, and raise a
UsageError if n is odd.
"""

import math

from replicator import UsageError, random

import gin
import tensorflow as tf

Mixed = tuple[tf.Tensor, tf.Tensor]


@gin.configurable
class MixUp:
  """Weighted means of two images (Zhang et al. 2018, arXiv:1710.09412).

  Args:
    alpha: shares are drawn from Beta(alpha, alpha); 0.2 for ImageNet and 1 for CIFAR-10 in the
      paper.

  Raises:
    UsageError: alpha is not above 0.
  """

  def __init__(self, alpha: float = 0.2):
    self.alpha = _checked("MixUp", alpha)

  def __call__(self, images: tf.Tensor, classes: tf.Tensor) -> Mixed:
    share = _shares("mixup", images, self.alpha)
    keep = share[:, tf.newaxis, tf.newaxis, tf.newaxis]
    mixed = keep * images + (1 - keep) * _neighbors(images)
    return mixed, _mixed_classes(classes, share)


@gin.configurable
class CutMix:
  """Images with a rectangle from another image (Yun et al. 2019, arXiv:1905.04899).

  The rectangle has the image's proportions, and its center is anywhere. It is clipped to the image,
  and classes are weighted by the resulting numbers of pixels.

  Args:
    alpha: the share of the image that is kept is drawn from Beta(alpha, alpha); 1 in the paper.

  Raises:
    UsageError: alpha is not above 0.
  """

  def __init__(self, alpha: float = 1.0):
    self.alpha = _checked("CutMix", alpha)

  def __call__(self, images: tf.Tensor, classes: tf.Tensor) -> Mixed:
    n, height, width, _ = images.shape
    side = tf.sqrt(1 - _shares("cutmix", images, self.alpha))
    center = random.uniform("cutmix", [n, 2], dtype=images.dtype)
    rows, columns = (_within(size, center[:, axis], side)
                     for axis, size in enumerate((height, width)))
    is_other = (rows[:, :, tf.newaxis] & columns[:, tf.newaxis, :])[..., tf.newaxis]
    share = 1 - tf.reduce_mean(tf.cast(is_other, images.dtype), [1, 2, 3])
    return tf.where(is_other, _neighbors(images), images), _mixed_classes(classes, share)


def _within(size: int, center: tf.Tensor, side: tf.Tensor) -> tf.Tensor:
  """Returns which pixels are within half a side of the center, in [0, 1]: bool `[n, size]`."""
  middles = (tf.range(size, dtype=center.dtype) + 0.5) / size
  return tf.abs(middles - center[:, tf.newaxis]) < side[:, tf.newaxis] / 2


def _mixed_classes(classes: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
  keep = tf.cast(share, classes.dtype)[:, tf.newaxis]
  return keep * classes + (1 - keep) * _neighbors(classes)


def _neighbors(x: tf.Tensor) -> tf.Tensor:
  """Returns the neighbor of each example, `[n, ...]`."""
  n = x.shape[0]
  if n % 2:
    raise UsageError(f"MixUp, CutMix: mix pairs of examples, but a replica has {n}; make "
                     "train.global_batch_size an even multiple of the number of replicas")
  pairs = tf.reshape(x, [n // 2, 2, *x.shape[1:]])
  return tf.reshape(tf.reverse(pairs, [1]), x.shape)


def _shares(stream: str, images: tf.Tensor, alpha: float) -> tf.Tensor:
  """Draws from Beta(alpha, alpha), `[n]`, in the dtype of the images.

  It uses two uniform draws and the polar method for Student's t (Bailey 1994, Mathematics of
  Computation 62): if T is t-distributed with 2 alpha degrees of freedom, then
  (1 + T / sqrt(2 alpha + T^2)) / 2 is distributed as Beta(alpha, alpha).
  """
  n = images.shape[0]
  u, v = (random.uniform(stream, [n], dtype=images.dtype) for _ in range(2))
  squared = tf.pow(1 - u, 1 / alpha)  # 1 / (1 + R^2) of the radius R.
  along = tf.sqrt(1 - squared) * tf.cos(2 * math.pi * v)
  return (1 + tf.math.divide_no_nan(along, tf.sqrt(squared + tf.square(along)))) / 2


def _checked(name: str, alpha: float) -> float:
  if not alpha > 0:
    raise UsageError(f"{name}.alpha = {alpha!r}: must be above 0; leave {name} out to mix nothing")
  return alpha
