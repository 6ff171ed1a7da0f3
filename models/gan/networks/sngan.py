"""The residual networks of SN-GAN, for images of 8, 16, 32, 64 and 128 pixels.

Generator and discriminator follow Miyato et al. 2018 (arXiv:1802.05957), for classes Miyato and
Koyama 2018 (arXiv:1802.05637), and the authors' public code where the papers are silent. Initial
weights are Glorot-uniform, with gain sqrt(2) in the 3x3 convolutions of the blocks and gain 1 in
shortcuts, linear layers, embeddings and the generator's last convolution. Initial biases are zero.
Two things differ: the discriminator's last linear layer has no bias at any resolution (the authors'
networks for 64 and 128 pixels have one), and batch normalization adds 1e-5 to the variance instead
of 2e-5.
"""

import functools

from models.gan.networks.building import architecture_of, build_chain, check_images, check_labels
from models.gan.networks.discriminator import Discriminator
from models.gan.networks.normalization import ClassBatchNorm
from models.gan.networks.residual_blocks import Architecture, DownBlock, UpBlock, dense
from replicator import GlobalBatchNorm, UsageError

import gin
import keras
import tensorflow as tf

# 32, 64 and 128 pixels are the authors' networks. Those for 8 and 16 have fewer blocks than 32.
ARCHITECTURES = {
    8: Architecture((256,) * 2, (128,) * 3, downsamplings=1),
    16: Architecture((256,) * 3, (128,) * 3, downsamplings=1),
    32: Architecture((256,) * 4, (128,) * 4, downsamplings=2),
    64: Architecture((1024, 512, 256, 128, 64), (64, 128, 256, 512, 1024), downsamplings=5),
    128: Architecture((1024, 1024, 512, 256, 128, 64), (64, 128, 256, 512, 1024, 1024),
                      downsamplings=5),
}


@gin.configurable
class SNGANGenerator(keras.Model):
  """SN-GAN's generator: `[n, latent_dim] -> [n, resolution, resolution, channels]`.

  A linear layer makes a 4x4 map, blocks double its size, and batch normalization, ReLU, a 3x3
  convolution and tanh make the image. Pixels are in [-1, 1], float32 (float64 under its policy).

  Args:
    resolution: 8, 16, 32, 64 or 128 pixels.
    channels: 1 for gray, 3 for color images.
    latent_dim: the length of a latent.
    width_multiplier: multiplies the channels of all layers of the published network.
    num_classes: above 0, batch normalization in the blocks is class-conditional.

  Raises:
    UsageError: the resolution is unknown, `width_multiplier` leaves no channel, or a call lacks
      labels.
  """

  def __init__(self, resolution: int, channels: int = 3, latent_dim: int = 128,
               width_multiplier: float = 1.0, num_classes: int = 0):
    # TensorFlow orders sums by operation names; this one lets runs of earlier versions resume
    # exactly.
    super().__init__(autocast=False, name="generator")
    architecture = architecture_of("SNGANGenerator", "SN-GAN", ARCHITECTURES, resolution)
    first, *others = _channels("SNGANGenerator", architecture.up, width_multiplier)
    self.num_classes = num_classes
    self.linear = keras.layers.Dense(4 * 4 * first)
    norm = functools.partial(ClassBatchNorm, num_classes) if num_classes else GlobalBatchNorm
    self.blocks = [UpBlock(filters, [norm(), norm()], _glorot, spectral=False)
                   for filters in others]
    self.norm = GlobalBatchNorm()
    self.to_image = keras.layers.Conv2D(channels, 3, padding="same")
    self.linear.build((None, latent_dim))
    self.base = (4, 4, first)
    build_chain([*self.blocks, self.norm, self.to_image], (None, *self.base))
    self.built = True

  def call(self, z: tf.Tensor, labels: tf.Tensor | None = None,
           training: bool = False) -> tf.Tensor:
    """Draws images from `z [n, latent_dim]` and, if conditional, labels as in `class_weights`."""
    check_labels("SNGANGenerator", self.num_classes, labels)
    x = tf.reshape(self.linear(z), [-1, *self.base])
    for block in self.blocks:
      x = block(x, labels if self.num_classes else None)
    x = self.to_image(tf.nn.relu(self.norm(x)))
    return tf.tanh(tf.cast(x, self.variable_dtype))


@gin.configurable
class SNGANDiscriminator(Discriminator):
  """SN-GAN's discriminator: `[n, resolution, resolution, channels] -> [n]`.

  Residual blocks, ReLU and the sum over all positions give features h, which give the score of
  `Discriminator`. With latents, the output of a small network of (h, latent) is added (Donahue et
  al. 2017, arXiv:1605.09782). All layers are spectrally normalized.

  Args:
    resolution: 8, 16, 32, 64 or 128 pixels.
    channels: 1 for gray, 3 for color images.
    width_multiplier: multiplies the channels of all layers of the published network.
    num_classes: above 0, the score has a projection term.
    latent_dim: above 0, the score is of pairs of an image and a latent of this length.

  Raises:
    UsageError: the resolution is unknown, `width_multiplier` leaves no channel, images have
      the wrong size, labels are missing, or latents are missing or unexpected.
  """

  def __init__(self, resolution: int, channels: int = 3, width_multiplier: float = 1.0,
               num_classes: int = 0, latent_dim: int = 0):
    super().__init__((resolution, resolution, channels), num_classes, name="discriminator")
    architecture = architecture_of("SNGANDiscriminator", "SN-GAN", ARCHITECTURES, resolution)
    self.latent_dim = latent_dim
    self.blocks = _down_blocks("SNGANDiscriminator", architecture, width_multiplier,
                               spectral=True)
    self.num_features = features = build_chain(self.blocks, (None, *self.image_shape))[-1]
    head = functools.partial(dense, dtype=self.variable_dtype, initializer="glorot_uniform")
    self.linear = head(1, features, use_bias=False)
    if num_classes:
      self.embedding = head(features, num_classes, use_bias=False)
    if latent_dim:
      self.joint_features = head(features, features, use_bias=False)
      self.joint_latent = head(features, latent_dim)
      self.joint_hidden = head(features, features)
      self.joint_score = head(1, features, use_bias=False)
    self.built = True

  def call(self, images: tf.Tensor, labels: tf.Tensor | None = None,  # type: ignore[override]
           latents: tf.Tensor | None = None, training: bool = False) -> tf.Tensor:
    """Scores images `[n]`, with `latents [n, latent_dim]`; see `Discriminator`."""
    check_labels("SNGANDiscriminator", self.num_classes, labels)
    if (latents is not None) != (self.latent_dim > 0):
      raise UsageError(
          f"SNGANDiscriminator.latent_dim is {self.latent_dim}, but it was given "
          f"{'no latents' if latents is None else 'latents'}: set latent_dim to their length, "
          "or to 0 for a discriminator of images only")
    features = self.features(images, training)
    scores = self.score(features, labels)
    return scores + self._judge_pair(features, latents) if self.latent_dim else scores

  def chain(self) -> list[DownBlock]:
    """Returns the blocks."""
    return self.blocks

  def _judge_pair(self, features, latents):
    # Image features and latents have separate first layers, so each enters with spectral norm 1.
    x = self.joint_features(features)
    x = tf.nn.relu(x + self.joint_latent(latents))
    x = tf.nn.relu(self.joint_hidden(x))
    return self.joint_score(x)[:, 0]


@gin.configurable
class Encoder(keras.Model):
  """An encoder of images to latents: `[n, resolution, resolution, channels] -> [n, latent_dim]`.

  It has the discriminator's blocks, with batch normalization instead of spectral normalization, and
  a linear layer on the whole last map, because a sum over positions would discard locations.
  Latents are float32 (float64 under its policy).

  Args:
    resolution: 8, 16, 32, 64 or 128 pixels.
    channels: 1 for gray, 3 for color images.
    latent_dim: the length of a latent.
    width_multiplier: multiplies the channels of all layers of the published network.

  Raises:
    UsageError: the resolution is unknown, `width_multiplier` leaves no channel, or images have
      the wrong size.
  """

  def __init__(self, resolution: int, channels: int = 3, latent_dim: int = 128,
               width_multiplier: float = 1.0):
    super().__init__(autocast=False)
    self.image_shape = (resolution, resolution, channels)
    architecture = architecture_of("Encoder", "SN-GAN", ARCHITECTURES, resolution)
    self.blocks = _down_blocks("Encoder", architecture, width_multiplier, spectral=False)
    self.norm = GlobalBatchNorm()
    self.flatten = keras.layers.Flatten()
    self.linear = keras.layers.Dense(latent_dim)
    build_chain([*self.blocks, self.norm, self.flatten, self.linear], (None, *self.image_shape))
    self.built = True

  def call(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
    """Infers latents `[n, latent_dim]` of images."""
    check_images("Encoder", self.image_shape, images)
    x = images
    for block in self.blocks:
      x = block(x)
    x = tf.nn.relu(self.norm(x))
    return tf.cast(self.linear(self.flatten(x)), self.variable_dtype)


def _down_blocks(network: str, architecture: Architecture, multiplier: float, spectral: bool
                 ) -> list[DownBlock]:
  return [DownBlock(filters, i < architecture.downsamplings, i == 0, _glorot, spectral, narrow=True)
          for i, filters in enumerate(_channels(network, architecture.down, multiplier))]


def _glorot(size: int) -> keras.initializers.Initializer:
  # New in each call, because a Keras initializer repeats its numbers when reused.
  return keras.initializers.VarianceScaling(2 if size == 3 else 1, "fan_avg", "uniform")


def _channels(network: str, counts: tuple[int, ...], multiplier: float) -> list[int]:
  scaled = [round(count * multiplier) for count in counts]
  if min(scaled) < 1:
    raise UsageError(f"{network}.width_multiplier = {multiplier!r} leaves a layer of {min(counts)} "
                     f"channels with none: use at least {1 / min(counts)}")
  return scaled
