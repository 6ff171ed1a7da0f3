"""The networks of R3GAN, for images of 8 to 256 pixels (Huang et al. 2024, arXiv:2501.05441).

There is one stage of residual blocks for each size from 4x4 up, without normalization. The
discriminator mirrors the generator. Widths and groups are those of the authors' public code
(brownvc/R3GAN). The networks for CIFAR-10 and FFHQ-64 are the first stages of those for FFHQ-256.
Those for ImageNet have

    widths = (1536, 1536, 1536, 1536)    # one more for 64 pixels
    groups = (96, 96, 96, 96)

Initial weights are normal with variance gain^2 / fan_in. The gain is sqrt(2 / 1.04) L^(-1/4) before
a leaky ReLU, where L is the number of blocks of the network, and 1 elsewhere. The last
convolution of each block starts at zero (Zhang et al. 2019, arXiv:1901.09321). Under
'mixed_bfloat16' the 4x4 stage is float32, as in the authors' code.
"""

from typing import Any

from models.gan.networks.building import SameShape, build_chain, call_chain, class_weights, linear
from models.gan.networks.discriminator import Discriminator
from models.gan.networks.grouped_conv import GroupedConv2D, normal
from replicator import UsageError
from replicator.errors import at_least_one

import gin
import keras
import numpy as np
import tensorflow as tf

SLOPE = 0.2  # The slope of leaky ReLUs below 0.
RELU_GAIN = (2 / (1 + SLOPE ** 2)) ** 0.5  # Keeps the variance through a convolution and a ReLU.
_WIDTHS = (768, 768, 768, 768, 384, 192, 96)  # The stages for 4, 8, ... 256 pixels.


class ResidualBlock(SameShape):
  """An inverted bottleneck: `[n, h, w, c] -> [n, h, w, c]` (Huang et al. 2024, arXiv:2501.05441).

  A 1x1 convolution to 2c channels, a 3x3 grouped convolution, and a 1x1 convolution back to c. The
  first two have a bias and a leaky ReLU, and their initial weights have the given gain. The last
  one starts at zero, so that the block starts as the identity. `groups` divides 2c.
  """

  def __init__(self, groups: int, gain: float, dtype: str | None = None):
    super().__init__(autocast=False, dtype=dtype)
    self.groups = groups
    self.gain = gain

  def build(self, input_shape):
    channels = input_shape[-1]
    self.expand = conv1(2 * channels, self.gain, self.dtype_policy, use_bias=True)
    self.mix = GroupedConv2D(2 * channels, self.groups, self.gain, dtype=self.dtype_policy)
    self.reduce = conv1(channels, 0.0, self.dtype_policy)
    build_chain([self.expand, self.mix, self.reduce], input_shape)

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    x = tf.cast(inputs, self.compute_dtype)
    y = tf.nn.leaky_relu(self.expand(x), SLOPE)
    y = tf.nn.leaky_relu(self.mix(y), SLOPE)
    return x + self.reduce(y)


class Transition(keras.layers.Layer):
  """A layer that doubles or halves the size of a map, and changes its channels if they differ.

  With `up` it uses `upsample`, `[n, h, w, i] -> [n, 2 h, 2 w, filters]`, otherwise `downsample`.
  The 1x1 convolution for the channels runs at the smaller of the two sizes.
  """

  def __init__(self, filters: int, up: bool):
    super().__init__(autocast=False)
    self.filters = filters
    self.up = up

  def build(self, input_shape):
    self.conv = None if input_shape[-1] == self.filters else conv1(self.filters)
    if self.conv:
      self.conv.build(input_shape)

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    x = tf.cast(inputs, self.compute_dtype)
    x = x if self.up else downsample(x)
    x = self.conv(x) if self.conv else x
    return upsample(x) if self.up else x

  def compute_output_shape(self, input_shape):
    n, h, w, _ = input_shape
    return (n, 2 * h, 2 * w, self.filters) if self.up else (n, h // 2, w // 2, self.filters)


def downsample(x: tf.Tensor) -> tf.Tensor:
  """Filters with [1, 3, 3, 1] / 8 along both axes, with stride 2, to half the height and width.

  `[n, 2 h, 2 w, c] -> [n, h, w, c]`, with zero padding.
  """
  _, h, w, c = x.shape
  # Products with small matrices take a third of the time of a depthwise convolution and its
  # gradients at 32 pixels, and half at 8.
  x = tf.matmul(_low_pass(h, x.dtype), tf.reshape(x, [-1, h, w * c]))
  x = tf.matmul(_low_pass(w, x.dtype), tf.reshape(x, [-1, w, c]))
  return tf.reshape(x, [-1, h // 2, w // 2, c])


def upsample(x: tf.Tensor) -> tf.Tensor:
  """Applies four times the transpose of `downsample`: `[n, h, w, c] -> [n, 2 h, 2 w, c]`."""
  _, h, w, c = x.shape
  x = tf.matmul(2 * _low_pass(2 * w, x.dtype), tf.reshape(x, [-1, w, c]), transpose_a=True)
  x = tf.matmul(2 * _low_pass(2 * h, x.dtype), tf.reshape(x, [-1, h, 2 * w * c]), transpose_a=True)
  return tf.reshape(x, [-1, 2 * h, 2 * w, c])


def _low_pass(size: int, dtype: tf.DType) -> tf.Tensor:
  """Returns the matrix [size / 2, size] of the filter along one axis."""
  # Output i is the middle of the inputs 2i and 2i + 1.
  distance = np.abs(np.subtract.outer(2 * np.arange(size // 2) + 0.5, np.arange(size)))
  return tf.constant(np.select([distance == 0.5, distance == 1.5], [3 / 8, 1 / 8], 0), dtype)


def conv1(filters: int, gain: float = 1.0, dtype: Any = None, use_bias: bool = False
          ) -> keras.layers.Dense:
  """Makes a 1x1 convolution, as a matrix product, whose gradients are faster than `Conv2D`'s."""
  return keras.layers.Dense(filters, use_bias=use_bias, kernel_initializer=normal(gain),
                            dtype=dtype)


@gin.configurable
class R3GANGenerator(keras.Model):
  """R3GAN's generator: `[n, latent_dim], [n] -> [n, resolution, resolution, channels]`.

  A learned 4x4 map, whose channels are multiplied by a linear function of the latent, goes through
  the stages and a 1x1 convolution. If conditional, a label embedding as long as the latent is
  concatenated with it. Pixels are float32 (float64 under its policy) and unbounded, because there
  is no tanh.

  Args:
    resolution: height and width of the images, in pixels: 4 times a power of two.
    channels: 1 for gray, 3 for color images.
    latent_dim: the length of a latent.
    num_classes: 0 for a generator without labels.
    widths: channels of each stage, from 4x4 up; None for the paper's.
    groups: groups of the 3x3 convolutions of each stage; None for groups of 16 channels.
    blocks: residual blocks of each stage.

  Raises:
    UsageError: the resolution is unknown and no widths are given, the number of widths or groups
      differs from that of stages, groups do not divide the channels, a stage has no blocks, or a
      call lacks labels.
  """

  def __init__(self, resolution: int, channels: int = 3, latent_dim: int = 64,
               num_classes: int = 0, widths: tuple[int, ...] | None = None,
               groups: tuple[int, ...] | None = None, blocks: int = 2):
    super().__init__(autocast=False)
    self.num_classes = num_classes
    widths = _widths("R3GANGenerator", resolution, widths)
    stages = _stages("R3GANGenerator", widths, groups, blocks, self.variable_dtype)
    if num_classes:
      self.embedding = linear(num_classes, latent_dim, normal(), self.variable_dtype)
    inputs = 2 * latent_dim if num_classes else latent_dim
    self.linear = linear(inputs, widths[0], normal(), self.variable_dtype)
    self.base = self.add_weight(name="base", shape=(4, 4, widths[0]),
                                initializer=keras.initializers.RandomNormal(stddev=1.0))
    self.trunk = list(stages[0])
    for width, stage in zip(widths[1:], stages[1:], strict=True):
      self.trunk += [Transition(width, up=True), *stage]
    self.to_image = conv1(channels)
    build_chain([*self.trunk, self.to_image], (None, *self.base.shape))
    self.built = True

  def call(self, z: tf.Tensor, labels: tf.Tensor | None = None,
           training: bool = False) -> tf.Tensor:
    """Draws images from `z [n, latent_dim]` and, if conditional, labels as in `class_weights`."""
    if self.num_classes:
      weights = class_weights(labels, self.num_classes, self.variable_dtype, "R3GANGenerator")
      z = tf.concat([z, self.embedding(weights)], axis=1)
    x = self.linear(z)[:, tf.newaxis, tf.newaxis] * self.base
    return tf.cast(self.to_image(call_chain(self.trunk, x)), self.variable_dtype)


@gin.configurable
class R3GANDiscriminator(Discriminator):
  """R3GAN's discriminator: `[n, resolution, resolution, channels] -> [n]`.

  A 1x1 convolution, the stages and a depthwise 4x4 convolution give features h. The score is
  `<v, h>`, or with classes `<V h, embedding(label)>` (Miyato and Koyama 2018, arXiv:1802.05637). It
  has no normalization, so each score depends on only one image, as gradient penalties require.
  From h on it computes in float32 (float64 under its policy).

  Args:
    resolution: height and width of the images, in pixels: 4 times a power of two.
    channels: 1 for gray, 3 for color images.
    num_classes: above 0, the score depends on the label.
    widths: channels of each stage, from 4x4 up; None for the paper's.
    groups: groups of the 3x3 convolutions of each stage; None for groups of 16 channels.
    blocks: residual blocks of each stage.

  Raises:
    UsageError: as for the generator, or images have a different size.
  """

  def __init__(self, resolution: int, channels: int = 3, num_classes: int = 0,
               widths: tuple[int, ...] | None = None, groups: tuple[int, ...] | None = None,
               blocks: int = 2):
    super().__init__((resolution, resolution, channels), num_classes)
    widths = _widths("R3GANDiscriminator", resolution, widths)
    stages = _stages("R3GANDiscriminator", widths, groups, blocks, self.variable_dtype)
    self.from_image = conv1(widths[-1])
    self.trunk: list[keras.layers.Layer] = []
    for width, stage in zip(widths[-2::-1], stages[:0:-1], strict=True):
      self.trunk += [*stage, Transition(width, up=False)]
    self.trunk += stages[0]
    build_chain([self.from_image, *self.trunk], (None, *self.image_shape))
    self.num_features = widths[0]
    self.base = self.add_weight(name="base", shape=(4, 4, self.num_features),
                                initializer=keras.initializers.RandomNormal(stddev=1 / 4))
    self.linear = linear(self.num_features, self.num_features if num_classes else 1, normal(),
                         self.variable_dtype)
    if num_classes:
      self.embedding = linear(num_classes, self.num_features, normal(self.num_features ** -0.5),
                              self.variable_dtype)
    self.built = True

  def score(self, features: tf.Tensor, labels: tf.Tensor | None) -> tf.Tensor:
    """Computes scores `[n]` from features and labels."""
    outputs = self.linear(features)
    if not self.num_classes:
      return outputs[:, 0]
    one_hot = tf.one_hot(labels, self.num_classes, dtype=outputs.dtype)
    return tf.reduce_sum(outputs * self.embedding(one_hot), axis=1)

  def chain(self) -> list[keras.layers.Layer]:
    """Returns the layers from images to the last map."""
    return [self.from_image, *self.trunk]

  def pooled(self, x: tf.Tensor) -> tf.Tensor:
    """Sums the last map over positions, with weights: `[n, 4, 4, c] -> [n, c]`."""
    return tf.reduce_sum(tf.cast(x, self.variable_dtype) * self.base, axis=[1, 2])


def _widths(network: str, resolution: int, widths: tuple[int, ...] | None) -> tuple[int, ...]:
  """Returns the channels of each stage, from 4x4 up."""
  sizes = [4 * 2 ** i for i in range(max(resolution, 1).bit_length() - 2)]
  if resolution < 8 or sizes[-1] != resolution or not (widths or len(sizes) <= len(_WIDTHS)):
    raise UsageError(f"{network}.resolution = {resolution!r}: R3GAN has no networks of this size; "
                     "use one of 8, 16, 32, 64, 128, 256")
  if widths and len(widths) != len(sizes):
    raise UsageError(f"{network}.widths = {widths!r} are for {4 * 2 ** (len(widths) - 1)} pixels, "
                     f"but resolution = {resolution}: write {len(sizes)} numbers, the channels at "
                     f"{', '.join(map(str, sizes))} pixels")
  return tuple(widths or _WIDTHS[:len(sizes)])


def _stages(network: str, widths: tuple[int, ...], groups: tuple[int, ...] | None, blocks: int,
            dtype: str) -> list[list[ResidualBlock]]:
  """Makes the blocks of each stage, from 4x4 up. The first has the dtype of the variables."""
  at_least_one(network, blocks=blocks)
  groups = groups or tuple(max(width // 8, 1) for width in widths)
  if len(groups) != len(widths) or any(2 * w % g for w, g in zip(widths, groups, strict=True)):
    raise UsageError(f"{network}.groups = {groups!r} do not fit widths = {widths!r}: write one "
                     "number for each width, a divisor of twice the width")
  gain = RELU_GAIN * (len(widths) * blocks) ** -0.25
  return [[ResidualBlock(count, gain, dtype=None if i else dtype) for _ in range(blocks)]
          for i, count in enumerate(groups)]
