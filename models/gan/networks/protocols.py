"""The protocols of a GAN's networks and augmentations, which experiments call.

Any network that follows them works: a Keras model, a TensorFlow module, or the user's own class.
Its constructor makes all variables, and `trainable_variables` lists those that an optimizer
updates. Floats have the dtype `keras.config.floatx()`.
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
  """A network that draws images from latents.

  Constructed by `make(resolution=, channels=, latent_dim=, num_classes=)`, with 0 classes for a
  generator without labels.
  """

  def __call__(self, z: tf.Tensor, labels: tf.Tensor | None = None, *,
               training: bool = False) -> tf.Tensor:
    """Draws images in [-1, 1]: `[n, latent_dim], int32 [n] -> [n, resolution, resolution, c]`.

    A generator that can mix classes also accepts class weights, floating `[n, num_classes]`, as
    labels: `models.gan.networks.building.class_weights` converts both to weights.
    """
    ...


class DiscriminatorNetwork(TrainedNetwork, Protocol):
  """A network that scores images; a high score means real.

  Constructed by `make(resolution=, channels=, num_classes=)`, with 0 classes for a discriminator
  that ignores labels. `models.gan.networks.discriminator.Discriminator` is a base class.
  """

  def __call__(self, images: tf.Tensor, labels: tf.Tensor | None = None, *,
               training: bool = False) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
    """Scores images: `[n, resolution, resolution, channels], int32 [n] -> [n]`.

    A discriminator that also classifies returns a pair: scores, and logits `[n, num_classes]`.
    """
    ...


class EncoderNetwork(TrainedNetwork, Protocol):
  """A network that infers latents; constructed by `make(resolution=, channels=, latent_dim=)`."""

  def __call__(self, images: tf.Tensor, *, training: bool = False) -> tf.Tensor:
    """Infers latents: `[n, resolution, resolution, channels] -> [n, latent_dim]`."""
    ...


class GANAugmentation(Protocol):
  """Differentiable augmentation of a discriminator's inputs, real and generated.

  A subclass that does not adapt to scores only needs `__call__`.
  """

  def __call__(self, images: tf.Tensor) -> tf.Tensor:
    """Augments each image independently: `[n, h, w, c] -> [n, h, w, c]`, in the same dtype.

    Draws of `replicator.random` are per image, on any number of replicas.
    """
    ...

  def observe(self, real_scores: tf.Tensor) -> None:
    """Receives the scores `[n]` of real images in each discriminator update."""
