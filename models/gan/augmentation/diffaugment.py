"""DiffAugment: Zhao et al. 2020 (arXiv:2006.10738)."""

from models.gan.networks.protocols import GANAugmentation
from models.vision.augmentation.flip_and_shift import shift
from replicator import random

import gin
import tensorflow as tf


@gin.configurable
class DiffAugment(GANAugmentation):
  """Random color, translation and cutout for each image: `[n, h, w, c] -> [n, h, w, c]`.

  It augments all images that the discriminator sees, real and generated, also in the generator's
  update. It is differentiable, and its draws are per example. With one channel, saturation has no
  effect. The paper uses all three augmentations, but only translation and cutout for BigGAN on
  CIFAR-10.

  Args:
    color: adds U(-0.5, 0.5); multiplies differences from the channel mean by U(0, 2), then those
      from the image mean by U(0.5, 1.5).
    translation: shifts by up to an eighth of the size in whole pixels, and fills with zeros.
    cutout: sets a square to zero, half as wide as the image and centered anywhere.
  """

  def __init__(self, color: bool = True, translation: bool = True, cutout: bool = True):
    self.color = color
    self.translation = translation
    self.cutout = cutout

  def __call__(self, images: tf.Tensor) -> tf.Tensor:
    if self.color:
      images = _recolored(images)
    if self.translation:
      images = _translated(images)
    return _cut(images) if self.cutout else images


def _recolored(images: tf.Tensor) -> tf.Tensor:
  draws = random.uniform("diffaugment", [images.shape[0], 1, 1, 3], dtype=images.dtype)
  brightness, saturation, contrast = tf.split(draws, 3, axis=3)
  images += brightness - 0.5
  images = _spread(images, [3], 2 * saturation)
  return _spread(images, [1, 2, 3], contrast + 0.5)


def _spread(images: tf.Tensor, axes: list[int], factor: tf.Tensor) -> tf.Tensor:
  """Multiplies differences from a mean."""
  mean = tf.reduce_mean(images, axes, keepdims=True)
  return (images - mean) * factor + mean


def _translated(images: tf.Tensor) -> tf.Tensor:
  n, *size, _ = images.shape
  limits = [int(length / 8 + 0.5) for length in size]
  return shift(images, *(random.uniform("diffaugment", [n], -limit, limit + 1, "int32")
                         for limit in limits))


def _cut(images: tf.Tensor) -> tf.Tensor:
  rows, columns = (_within_hole(images.shape[0], length) for length in images.shape[1:3])
  is_hole = rows[:, :, tf.newaxis] & columns[:, tf.newaxis]
  return tf.where(is_hole[..., tf.newaxis], tf.zeros_like(images), images)


def _within_hole(n: int, length: int) -> tf.Tensor:
  """Returns which positions along an axis are in each image's hole, bool [n, length]."""
  width = int(length / 2 + 0.5)
  # The middle of a hole of even width is between two pixels, so it has one more position.
  middle = random.uniform("diffaugment", [n, 1], 0, length + 1 - width % 2, "int32")
  distance = tf.range(length) - (middle - width // 2)
  return (distance >= 0) & (distance < width)
