"""The protocol of the augmentations of a GAN."""

from typing import Protocol

import tensorflow as tf


class GANAugmentation(Protocol):
  """Changes the images that a discriminator sees, real and generated ones; it is differentiable.

  A class that inherits from it, and does not adapt to scores, needs `__call__` alone.
  """

  def __call__(self, images: tf.Tensor) -> tf.Tensor:
    """Changes each image in a way of its own: `[n, h, w, c] -> [n, h, w, c]`, in the same dtype.

    Draws of `replicator.random` belong to the images, on any number of replicas.
    """
    ...

  def observe(self, real_scores: tf.Tensor) -> None:
    """Receives the scores `[n]` of real images in each update of the discriminator."""
