"""A discriminator of every kind of layer that a penalty is differentiated through."""

from models.gan.networks.normalization import LayerNorm
from models.gan.networks.resampling import ConvDownsample2D
from replicator import SpectralNorm

import keras
import tensorflow as tf


def make_discriminator() -> keras.Model:
  """Scores `[n]` of images `[n, 6, 6, 2]`: smooth, so that finite differences apply."""
  keras.utils.set_random_seed(1)
  return Judge([SpectralNorm(ConvDownsample2D(4)), LayerNorm(), keras.layers.Activation("softplus"),
                keras.layers.Flatten(), SpectralNorm(keras.layers.Dense(3)),
                keras.layers.Activation("softplus"), keras.layers.Dense(1)])


class Judge(keras.Model):
  """A chain of layers with the interface of a discriminator."""

  def __init__(self, layers: list[keras.layers.Layer], channels: int = 2):
    super().__init__(autocast=False)
    self.chain = keras.Sequential([keras.Input([6, 6, channels]), *layers])
    self.built = True

  def call(self, images, labels=None, training=False):
    return tf.cast(self.chain(images, training=training)[:, 0], self.variable_dtype)
