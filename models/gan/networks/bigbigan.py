"""The encoder and the discriminator of BigBiGAN (Donahue and Simonyan 2019, arXiv:1907.02544).

The generator is BigGAN's, without classes. The encoder has the blocks of BigGAN's discriminator,
with batch normalization, at the generator's resolution; the paper uses a ResNet or RevNet at twice
the resolution. Its head and the discriminator's two small networks are residual multilayer
perceptrons. All initial weights are orthogonal, and initial biases are zero.
"""

from collections.abc import Callable
from typing import NamedTuple

from models.gan.networks.biggan import ARCHITECTURES, BigGANDiscriminator
from models.gan.networks.building import architecture_of, build_chain, call_chain, check_images
from models.gan.networks.residual_blocks import DownBlock, dense
from replicator import GlobalBatchNorm, SpectralNorm, UsageError, random
from replicator.errors import at_least_one

import gin
import keras
import tensorflow as tf


class PairScores(NamedTuple):
  """Scores of pairs of image and latent, each `[n]`; real images and their latents score high."""

  joint: tf.Tensor
  image: tf.Tensor  # The image alone.
  latent: tf.Tensor  # The latent alone.


class LatentDistribution(NamedTuple):
  """Independent normal distributions of latents: means and deviations, `[n, latent_dim]`."""

  mean: tf.Tensor
  scale: tf.Tensor

  def draw(self) -> tf.Tensor:
    """Draws latents `[n, latent_dim]` from the random stream `code`."""
    noise = random.normal("code", self.mean.shape, dtype=self.mean.dtype)
    return self.mean + noise * self.scale


@gin.configurable(denylist=["resolution", "channels", "latent_dim"])
class BigBiGANDiscriminator(keras.Model):
  """A discriminator of images, latents and pairs: `[n, h, w, c], [n, latent_dim] -> PairScores`.

  The network F computes features of an image, and H of a latent. J takes both. Each of the three
  ends with a linear layer that outputs its score. Everything is spectrally normalized.

  Args:
    resolution: height and width of the images, in pixels.
    channels: 1 for gray, 3 for color images.
    latent_dim: the length of a latent.
    image_network: makes F from resolution and channels: a discriminator of images with `features`,
      `num_features` and the layer `linear`, such as `BigGANDiscriminator` and
      `BigGANDeepDiscriminator`.
    units: the units of each linear layer of H and J.
    layers: the number of linear layers of H, and of J, before the score layer.

  Raises:
    UsageError: `units` or `layers` is below 1, or images or latents have the wrong shape.
  """

  def __init__(self, resolution: int, channels: int = 3, latent_dim: int = 120,
               image_network: Callable[[int, int], keras.Model] = BigGANDiscriminator,
               units: int = 2048, layers: int = 8):
    super().__init__(autocast=False)
    at_least_one("BigBiGANDiscriminator", units=units, layers=layers)
    self.latent_dim = latent_dim
    self.of_image = image_network(resolution, channels)
    self.of_latent, self.of_pair = (ResidualPerceptron(units, layers, spectral=True)
                                    for _ in range(2))
    self.of_latent.build((None, latent_dim))
    self.of_pair.build((None, self.of_image.num_features + units))
    self.latent_score, self.joint_score = (dense(1, units, self.variable_dtype) for _ in range(2))
    self.built = True

  def call(self, images: tf.Tensor, latents: tf.Tensor, training: bool = False) -> PairScores:
    """Scores images together with `latents [n, latent_dim]`."""
    if latents.shape[1:] != (self.latent_dim,):
      raise UsageError(f"BigBiGANDiscriminator is built for latents of length {self.latent_dim} "
                       f"but was given {list(latents.shape)}: pass the latent_dim of the generator")
    of_image = self.of_image.features(images, training)
    of_latent = self.of_latent(latents)
    of_pair = self.of_pair(tf.concat([of_image, of_latent], axis=1))
    return PairScores(self.joint_score(of_pair)[:, 0], self.of_image.linear(of_image)[:, 0],
                      self.latent_score(of_latent)[:, 0])


@gin.configurable(denylist=["resolution", "channels", "latent_dim"])
class BigBiGANEncoder(keras.Model):
  """An encoder of images to distributions of latents: `[n, h, w, c] -> LatentDistribution`.

  Residual blocks, batch normalization, ReLU and the mean over all positions give features, from
  which a residual multilayer perceptron computes means and scales. They are float32 (float64 under
  its policy). During training latents are sampled, because deterministic encoders have collapsed.

  Args:
    resolution: 8, 16, 32, 64, 128, 256 or 512 pixels.
    channels: 1 for gray, 3 for color images.
    latent_dim: the length of a latent.
    base_channels: the unit of the channels of all blocks, BigGAN's ch.
    units: the units of each linear layer of the perceptron.
    layers: the number of linear layers of the perceptron, before the output layer.

  Attributes:
    num_features: the number of features.

  Raises:
    UsageError: the resolution is unknown, `units` or `layers` is below 1, or images have the wrong
      size.
  """

  def __init__(self, resolution: int, channels: int = 3, latent_dim: int = 120,
               base_channels: int = 96, units: int = 4096, layers: int = 4):
    super().__init__(autocast=False)
    at_least_one("BigBiGANEncoder", units=units, layers=layers)
    architecture = architecture_of("BigBiGANEncoder", "BigGAN", ARCHITECTURES, resolution)
    self.image_shape = (resolution, resolution, channels)
    self.trunk: list[keras.layers.Layer] = [
        DownBlock(base_channels * count, i < architecture.downsamplings, i == 0, spectral=False)
        for i, count in enumerate(architecture.down)]
    self.trunk.append(GlobalBatchNorm())
    self.num_features = build_chain(self.trunk, (None, *self.image_shape))[-1]
    self.perceptron = ResidualPerceptron(units, layers, spectral=False)
    self.perceptron.build((None, self.num_features))
    self.mean_and_scale = keras.layers.Dense(2 * latent_dim, dtype=self.variable_dtype,
                                             kernel_initializer="orthogonal")
    self.mean_and_scale.build((None, units))
    self.built = True

  def call(self, images: tf.Tensor, training: bool = False) -> LatentDistribution:
    """Returns the distributions of the latents of images."""
    outputs = self.mean_and_scale(self.perceptron(self.features(images, training)))
    mean, scale = tf.split(outputs, 2, axis=1)
    return LatentDistribution(mean, tf.nn.softplus(scale))

  def features(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
    """Returns features `[n, num_features]`, on which the paper trains linear classifiers."""
    check_images("BigBiGANEncoder", self.image_shape, images)
    x = call_chain(self.trunk, images, training=training)
    return tf.reduce_mean(tf.cast(tf.nn.relu(x), self.variable_dtype), axis=[1, 2])


class ResidualPerceptron(keras.layers.Layer):
  """Linear layers, all but the first with a shortcut: `[n, i] -> [n, units]`.

      x_1 = W_1 input,  x_l = x_{l-1} + W_l relu(x_{l-1}),  output relu(x_layers)

  With `spectral`, all layers are spectrally normalized.
  """

  def __init__(self, units: int, layers: int, spectral: bool):
    super().__init__(autocast=False)
    linear = [keras.layers.Dense(units, dtype=self.variable_dtype, kernel_initializer="orthogonal")
              for _ in range(layers)]
    self.linear = [SpectralNorm(layer) for layer in linear] if spectral else linear

  def build(self, input_shape):
    build_chain(self.linear, input_shape)

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    x = self.linear[0](inputs)
    for layer in self.linear[1:]:
      x += layer(tf.nn.relu(x))
    return tf.nn.relu(x)
