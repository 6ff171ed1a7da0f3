"""The networks of DCGAN, for images of 8, 16, 32 and 64 pixels (Radford et al. 2015).

The paper (arXiv:1511.06434) describes 64 pixels; smaller images have fewer layers. Every 5x5
convolution doubles or halves the size. Where the paper is silent, we follow the authors' public
code (Newmu/dcgan_code): no bias before batch normalization, and normal initial weights with
standard deviation 0.02. Two things differ: the initial scales of batch normalization are ones, not
normal around 1, and the discriminator has no sigmoid, since losses take scores. The generator uses
labels as in Mirza and Osindero 2014 (arXiv:1411.1784), and the discriminator as in Miyato and
Koyama 2018 (arXiv:1802.05637).
"""

from models.gan.networks.building import (
  architecture_of,
  build_chain,
  call_chain,
  class_weights,
  linear,
  small_normal,
)
from models.gan.networks.discriminator import Discriminator
from replicator import GlobalBatchNorm
from replicator.errors import at_least_one

import gin
import keras
import tensorflow as tf

# Channels of the maps of 4, 8, 16 and 32 pixels, in units of `base_channels`.
ARCHITECTURES = {8: (1,), 16: (2, 1), 32: (4, 2, 1), 64: (8, 4, 2, 1)}


@gin.configurable
class DCGANGenerator(keras.Model):
  """DCGAN's generator: `[n, latent_dim], [n] -> [n, resolution, resolution, channels]`.

  A linear layer makes a 4x4 map. Transposed convolutions double its size, with batch normalization
  and ReLU before each. The last one outputs the image, with tanh. If conditional, the one-hot label
  is concatenated with the latent. Pixels are in [-1, 1], float32 (float64 under its policy).

  Args:
    resolution: 8, 16, 32 or 64 pixels.
    channels: 1 for gray, 3 for color images.
    latent_dim: the length of a latent.
    num_classes: 0 for a generator without labels.
    base_channels: channels of the last map before the image, the `ngf` of PyTorch's DCGAN; each
      earlier map has twice as many.

  Raises:
    UsageError: the resolution is unknown, `base_channels` is below 1, or a call lacks labels.
  """

  def __init__(self, resolution: int, channels: int = 3, latent_dim: int = 100,
               num_classes: int = 0, base_channels: int = 128):
    super().__init__(autocast=False)
    first, *others = _channels("DCGANGenerator", resolution, base_channels)
    self.num_classes = num_classes
    self.base = (4, 4, first)
    self.linear = linear(latent_dim + num_classes, 4 * 4 * first, small_normal())
    self.trunk: list[keras.layers.Layer] = [GlobalBatchNorm(), keras.layers.ReLU(),
                                            keras.layers.Reshape(self.base)]
    for filters in others:
      self.trunk += [_convolution(keras.layers.Conv2DTranspose, filters), GlobalBatchNorm(),
                     keras.layers.ReLU()]
    self.trunk.append(_convolution(keras.layers.Conv2DTranspose, channels))
    build_chain(self.trunk, (None, 4 * 4 * first))
    self.built = True

  def call(self, z: tf.Tensor, labels: tf.Tensor | None = None,
           training: bool = False) -> tf.Tensor:
    """Draws images from `z [n, latent_dim]` and, if conditional, labels as in `class_weights`."""
    if self.num_classes:
      weights = class_weights(labels, self.num_classes, z.dtype, "DCGANGenerator")
      z = tf.concat([z, weights], axis=1)
    x = call_chain(self.trunk, self.linear(z))
    return tf.tanh(tf.cast(x, self.variable_dtype))


@gin.configurable
class DCGANDiscriminator(Discriminator):
  """DCGAN's discriminator: `[n, resolution, resolution, channels] -> [n]`.

  Convolutions halve the size down to 4x4, each followed by a leaky ReLU, and all but the first by
  batch normalization. The last map, flattened to h, gives the score of `Discriminator`.

  Args:
    resolution: 8, 16, 32 or 64 pixels.
    channels: 1 for gray, 3 for color images.
    num_classes: above 0, the score has a projection term.
    base_channels: channels of the first map, the `ndf` of PyTorch's DCGAN; each later map has twice
      as many.
    batch_norm: False replaces batch normalization with biases. Gradient penalties need that,
      because batch normalization makes an image's score depend on all images of the batch
      (Gulrajani et al. 2017, arXiv:1704.00028, section 4).

  Raises:
    UsageError: the resolution is unknown, `base_channels` is below 1, images have a different size,
      or labels are missing.
  """

  def __init__(self, resolution: int, channels: int = 3, num_classes: int = 0,
               base_channels: int = 128,
               batch_norm: bool = True):
    super().__init__((resolution, resolution, channels), num_classes)
    first, *others = reversed(_channels("DCGANDiscriminator", resolution, base_channels))
    self.trunk = [_convolution(keras.layers.Conv2D, first), keras.layers.LeakyReLU(0.2)]
    for filters in others:
      self.trunk.append(_convolution(keras.layers.Conv2D, filters, use_bias=not batch_norm))
      self.trunk += [GlobalBatchNorm()] * batch_norm + [keras.layers.LeakyReLU(0.2)]
    self.trunk.append(keras.layers.Flatten())
    _, self.num_features = build_chain(self.trunk, (None, *self.image_shape))
    self.linear = linear(self.num_features, 1, small_normal(), self.variable_dtype)
    if num_classes:
      self.embedding = linear(num_classes, self.num_features, small_normal(), self.variable_dtype)
    self.built = True

  def pooled(self, x: tf.Tensor) -> tf.Tensor:
    """Returns the flattened last map as features: `[n, num_features]`."""
    return tf.cast(x, self.variable_dtype)


def _channels(network: str, resolution: int, base_channels: int) -> list[int]:
  at_least_one(network, base_channels=base_channels)
  return [base_channels * count for count in architecture_of(network, "DCGAN", ARCHITECTURES,
                                                             resolution)]


def _convolution(kind: type[keras.layers.Layer], filters: int, use_bias: bool = False
                 ) -> keras.layers.Layer:
  return kind(filters, 5, strides=2, padding="same", use_bias=use_bias,
              kernel_initializer=small_normal())
