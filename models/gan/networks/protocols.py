"""The protocols of a GAN's networks and augmentations, which experiments call.

Networks of any origin fit: Keras models, modules of TensorFlow, networks of the user's. All their
variables are made in the constructor, and `trainable_variables` lists those that an optimizer
updates. Floats have the dtype of `keras.config.floatx()`.
"""

from collections.abc import Sequence
from typing import Protocol

import keras
import tensorflow as tf


class TrainedNetwork(Protocol):
  """A network of a GAN, which an optimizer updates."""

  @property
  def trainable_variables(self) -> Sequence[keras.Variable]:
    """The variables that an optimizer updates."""
    ...


class GeneratorNetwork(TrainedNetwork, Protocol):
  """Draws images from codes.

  It is made by `make(resolution=, channels=, latent_dim=, num_classes=)`, with 0 classes for a
  generator without labels.
  """

  def __call__(self, z: tf.Tensor, labels: tf.Tensor | None = None, *,
               training: bool = False) -> tf.Tensor:
    """Images in [-1, 1]: `[n, latent_dim], int32 [n] -> [n, resolution, resolution, channels]`.

    A generator that mixes classes also takes their weights, floating `[n, num_classes]`, as labels:
    `models.gan.networks.building.class_weights` makes weights of both.
    """
    ...


class DiscriminatorNetwork(TrainedNetwork, Protocol):
  """Scores images: a high score means real.

  It is made by `make(resolution=, channels=, num_classes=)`, with 0 classes for a discriminator
  that ignores labels. `models.gan.networks.discriminator.Discriminator` is a base class
  of such networks.
  """

  def __call__(self, images: tf.Tensor, labels: tf.Tensor | None = None, *,
               training: bool = False) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
    """Scores `[n]` of images: `[n, resolution, resolution, channels], int32 [n] -> [n]`.

    One that classifies, too, returns a pair: these, and logits `[n, num_classes]`.
    """
    ...


class EncoderNetwork(TrainedNetwork, Protocol):
  """Finds the codes of images; it is made by `make(resolution=, channels=, latent_dim=)`."""

  def __call__(self, images: tf.Tensor, *, training: bool = False) -> tf.Tensor:
    """Codes of images: `[n, resolution, resolution, channels] -> [n, latent_dim]`."""
    ...


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
