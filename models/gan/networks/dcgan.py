"""The networks of DCGAN, for images of 8, 16, 32 and 64 pixels (Radford et al. 2015).

The paper (arXiv:1511.06434) describes 64 pixels; smaller images have fewer layers. Every 5x5
convolution doubles or halves the size. Where the paper says nothing, this follows the authors'
public code (Newmu/dcgan_code): no bias beside batch normalization, and initial weights that are
normal with standard deviation 0.02. Two things differ: the initial factors of batch normalization
are ones, instead of normal around 1, and the discriminator has no sigmoid, since losses take
scores. Labels enter as in Mirza and Osindero 2014 (arXiv:1411.1784) in the generator, and as in
Miyato and Koyama 2018 (arXiv:1802.05637) in the discriminator.
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

# Channels of the maps of 4, 8, 16 and 32 pixels, in units of the width.
ARCHITECTURES = {8: (1,), 16: (2, 1), 32: (4, 2, 1), 64: (8, 4, 2, 1)}


@gin.configurable
class DCGANGenerator(keras.Model):
  """Draws images from codes: `[n, latent_dim], [n] -> [n, resolution, resolution, channels]`.

  A linear layer makes a 4x4 map. Transposed convolutions double its size, with batch normalization
  and ReLU in front of each. The last one makes the image, with tanh. With classes, the one-hot
  label joins the code. Pixels are in [-1, 1], float32 (float64 under its policy).

  Args:
    resolution: 8, 16, 32 or 64 pixels.
    channels: 1 for gray, 3 for color images.
    latent_dim: the length of a code.
    num_classes: 0 for a generator without labels.
    width: channels of the last map before the image; each map before has twice the channels.

  Raises:
    UsageError: the resolution is unknown, the width is not positive, or a call lacks labels.
  """

  def __init__(self, resolution: int, channels: int = 3, latent_dim: int = 100,
               num_classes: int = 0, width: int = 128):
    super().__init__(autocast=False)
    first, *others = _channels("DCGANGenerator", resolution, width)
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
    """Images of codes `z [n, latent_dim]` and the labels of `class_weights`, if it has classes."""
    if self.num_classes:
      weights = class_weights(labels, self.num_classes, z.dtype, "DCGANGenerator")
      z = tf.concat([z, weights], axis=1)
    x = call_chain(self.trunk, self.linear(z))
    return tf.tanh(tf.cast(x, self.variable_dtype))


@gin.configurable
class DCGANDiscriminator(Discriminator):
  """Scores images: `[n, resolution, resolution, channels] -> [n]`.

  Convolutions halve the size down to 4x4, each with a leaky ReLU behind it, and all but the first
  with batch normalization. The last map, as one vector h, gives the score of `Discriminator`.

  Args:
    resolution: 8, 16, 32 or 64 pixels.
    channels: 1 for gray, 3 for color images.
    num_classes: above 0, the score has a projection term.
    width: channels of the first map; each map behind it has twice the channels.
    batch_norm: False leaves out batch normalization, and gives these convolutions a bias. Gradient
      penalties need that: with it, the score of an image depends on all images of the batch
      (Gulrajani et al. 2017, arXiv:1704.00028, section 4).

  Raises:
    UsageError: the resolution is unknown, the width is not positive, images have another size, or
      labels are missing.
  """

  def __init__(self, resolution: int, channels: int = 3, num_classes: int = 0, width: int = 128,
               batch_norm: bool = True):
    super().__init__((resolution, resolution, channels), num_classes)
    first, *others = reversed(_channels("DCGANDiscriminator", resolution, width))
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
    """The features of the last map, all of its numbers: `[n, num_features]`."""
    return tf.cast(x, self.variable_dtype)


def _channels(network: str, resolution: int, width: int) -> list[int]:
  at_least_one(network, width=width)
  return [width * count for count in architecture_of(network, "DCGAN", ARCHITECTURES, resolution)]


def _convolution(kind: type[keras.layers.Layer], filters: int, use_bias: bool = False
                 ) -> keras.layers.Layer:
  return kind(filters, 5, strides=2, padding="same", use_bias=use_bias,
              kernel_initializer=small_normal())
