"""The networks of R3GAN, for images of 8 to 256 pixels (Huang et al. 2024, arXiv:2501.05441).

One stage of residual blocks for each size from 4x4 up, without normalization. The discriminator
mirrors the generator. Widths and groups are those of the authors' public code (brownvc/R3GAN). The
networks for CIFAR-10 and FFHQ-64 are the first stages of those for FFHQ-256. ImageNet's have

    widths = (1536, 1536, 1536, 1536)    # once more for 64 pixels
    groups = (96, 96, 96, 96)

Initial weights are normal with the variance gain^2 / fan_in. The gain is sqrt(2 / 1.04) L^(-1/4) in
front of a leaky ReLU, where L is the number of blocks of the network, and 1 elsewhere. The last
convolution of each block starts at zero (Zhang et al. 2019, arXiv:1901.09321). Under
'mixed_bfloat16' the 4x4 stage is float32, as in the authors' code.
"""

import gin
import keras
import tensorflow as tf

from models.gan.networks.building import build_chain, check_labels, class_weights
from models.gan.networks.discriminator import Discriminator
from models.gan.networks.r3gan_blocks import RELU_GAIN, ResidualBlock, Transition, conv1, normal
from replicator import UsageError

_WIDTHS = (768, 768, 768, 768, 384, 192, 96)  # The stages for 4, 8, ... 256 pixels.


@gin.configurable
class R3GANGenerator(keras.Model):
  """Draws images from codes: `[n, latent_dim], [n] -> [n, resolution, resolution, channels]`.

  A learned 4x4 map, whose channels are multiplied by a linear function of the code, passes the
  stages and a 1x1 convolution. With classes, an embedding of the label as long as the code joins
  it. Pixels are float32 (float64 under its policy), and have no bound, because there is no tanh.

  Args:
    resolution: pixels, 4 times a power of two.
    channels: 1 for gray, 3 for color images.
    latent_dim: the length of a code.
    num_classes: 0 for a generator without labels.
    widths: channels of each stage, from 4x4 up; None for the paper's.
    groups: groups of the 3x3 convolutions of each stage; None for groups of 16 channels.
    blocks: residual blocks of each stage.

  Raises:
    UsageError: the paper has no such resolution and there are no widths, there are not as many
      widths or groups as stages, groups do not divide the channels, a stage has no blocks, or a
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
      self.embedding = _linear(num_classes, latent_dim, dtype=self.variable_dtype)
    code_dim = 2 * latent_dim if num_classes else latent_dim
    self.linear = _linear(code_dim, widths[0], dtype=self.variable_dtype)
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
    """Images of codes `z [n, latent_dim]` and the labels of `class_weights`, if it has classes."""
    check_labels("R3GANGenerator", self.num_classes, labels)
    if self.num_classes:
      weights = class_weights(labels, self.num_classes, self.variable_dtype)
      z = tf.concat([z, self.embedding(weights)], axis=1)
    x = self.linear(z)[:, tf.newaxis, tf.newaxis] * self.base
    for layer in self.trunk:
      x = layer(x)
    return tf.cast(self.to_image(x), self.variable_dtype)


@gin.configurable
class R3GANDiscriminator(Discriminator):
  """Scores images: `[n, resolution, resolution, channels] -> [n]`.

  A 1x1 convolution, the stages and a 4x4 convolution of each channel give features h. The score is
  `<v, h>`; with classes `<V h, embedding(label)>` instead (Miyato and Koyama 2018,
  arXiv:1802.05637). It has no normalization, so that each score depends on one image alone, as
  gradient penalties need. From h on it computes in float32 (float64 under its policy).

  Args:
    resolution: pixels, 4 times a power of two.
    channels: 1 for gray, 3 for color images.
    num_classes: above 0, the score depends on the label.
    widths: channels of each stage, from 4x4 up; None for the paper's.
    groups: groups of the 3x3 convolutions of each stage; None for groups of 16 channels.
    blocks: residual blocks of each stage.

  Raises:
    UsageError: as the generator's; or images have another size.
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
    self.linear = _linear(self.num_features, self.num_features if num_classes else 1,
                          dtype=self.variable_dtype)
    if num_classes:
      self.embedding = _linear(num_classes, self.num_features, gain=self.num_features ** -0.5,
                               dtype=self.variable_dtype)
    self.built = True

  def score(self, features: tf.Tensor, labels: tf.Tensor | None) -> tf.Tensor:
    """Scores `[n]` of features and labels."""
    outputs = self.linear(features)
    if not self.num_classes:
      return outputs[:, 0]
    one_hot = tf.one_hot(labels, self.num_classes, dtype=outputs.dtype)
    return tf.reduce_sum(outputs * self.embedding(one_hot), axis=1)

  def chain(self) -> list[keras.layers.Layer]:
    """The layers from images to the last map."""
    return [self.from_image, *self.trunk]

  def pooled(self, x: tf.Tensor) -> tf.Tensor:
    """The features of the last map, a weighted sum: `[n, 4, 4, c] -> [n, c]`."""
    return tf.reduce_sum(tf.cast(x, self.variable_dtype) * self.base, axis=[1, 2])


def _widths(network: str, resolution: int, widths: tuple[int, ...] | None) -> tuple[int, ...]:
  """The channels of each stage, from 4x4 up."""
  sizes = [4 * 2 ** i for i in range(max(resolution, 1).bit_length() - 2)]
  if resolution < 8 or sizes[-1] != resolution or not (widths or len(sizes) <= len(_WIDTHS)):
    raise UsageError(f"{network}.resolution = {resolution!r}: R3GAN has no networks of this size; "
                     "write one of 8, 16, 32, 64, 128, 256")
  if widths and len(widths) != len(sizes):
    raise UsageError(f"{network}.widths = {widths!r} are for {4 * 2 ** (len(widths) - 1)} pixels, "
                     f"but resolution = {resolution}: write {len(sizes)} numbers, the channels at "
                     f"{', '.join(map(str, sizes))} pixels")
  return tuple(widths or _WIDTHS[:len(sizes)])


def _stages(network: str, widths: tuple[int, ...], groups: tuple[int, ...] | None, blocks: int,
            dtype: str) -> list[list[ResidualBlock]]:
  """The blocks of each stage, from 4x4 up. The first stage has the dtype of the variables."""
  if blocks < 1:
    raise UsageError(f"{network}.blocks = {blocks!r}: write a positive number of blocks")
  groups = groups or tuple(max(width // 8, 1) for width in widths)
  if len(groups) != len(widths) or any(2 * w % g for w, g in zip(widths, groups, strict=True)):
    raise UsageError(f"{network}.groups = {groups!r} do not fit widths = {widths!r}: write one "
                     "number for each width, a divisor of twice the width")
  gain = RELU_GAIN * (len(widths) * blocks) ** -0.25
  return [[ResidualBlock(count, gain, dtype=None if i else dtype) for _ in range(blocks)]
          for i, count in enumerate(groups)]


def _linear(inputs: int, outputs: int, dtype: str, gain: float = 1.0) -> keras.layers.Dense:
  layer = keras.layers.Dense(outputs, use_bias=False, kernel_initializer=normal(gain), dtype=dtype)
  layer.build((None, inputs))
  return layer
