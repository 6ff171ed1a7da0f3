"""The networks of BigGAN, for images of 8 to 512 pixels (Brock et al. 2018, arXiv:1809.11096).

Tables 4 to 6 of the paper describe 128, 256 and 512 pixels. 32 and 64 follow Google's compare_gan;
ajbrock/BigGAN-PyTorch has a narrower discriminator at 64. 8 and 16 are like 32 with fewer blocks.
Where the public code differs, we follow the paper: self-attention at 64 pixels in all networks
(compare_gan's generator for 256 has it at 128), 1 + W condition as the factor in conditional
batch normalization (compare_gan leaves out the 1), no ReLU before the discriminator's first block,
and a shortcut in every block (compare_gan has none between equal widths).
"""

from models.gan.networks.attention import SelfAttention, with_attention
from models.gan.networks.building import architecture_of, build_chain, class_weights
from models.gan.networks.discriminator import Discriminator
from models.gan.networks.normalization import ConditionalBatchNorm
from models.gan.networks.residual_blocks import Architecture, DownBlock, UpBlock, conv, dense
from replicator import GlobalBatchNorm, UsageError

import gin
import keras
import tensorflow as tf

ARCHITECTURES = {
    8: Architecture((4,) * 2, (2,) * 3, downsamplings=1),
    16: Architecture((4,) * 3, (2,) * 3, downsamplings=1),
    32: Architecture((4,) * 4, (2,) * 4, downsamplings=2),
    64: Architecture((16, 16, 8, 4, 2), (2, 4, 8, 16, 16), downsamplings=4),
    128: Architecture((16, 16, 8, 4, 2, 1), (1, 2, 4, 8, 16, 16), downsamplings=5),
    256: Architecture((16, 16, 8, 8, 4, 2, 1), (1, 2, 4, 8, 8, 16, 16), downsamplings=6),
    512: Architecture((16, 16, 8, 8, 4, 2, 1, 1), (1, 1, 2, 4, 8, 8, 16, 16), downsamplings=7),
}


@gin.configurable
class BigGANGenerator(keras.Model):
  """BigGAN's generator: `[n, latent_dim], [n] -> [n, resolution, resolution, channels]`.

  The latent is split into equal chunks. A linear layer maps the first to a 4x4 map. Each other
  chunk, together with the class embedding that all blocks share, conditions the batch normalization
  of one block. Each block doubles the size. All convolutions and linear layers are spectrally
  normalized, but the embedding is not. Pixels are in [-1, 1], float32 (float64 under its policy).

  Args:
    resolution: 8, 16, 32, 64, 128, 256 or 512 pixels.
    channels: 1 for gray, 3 for color images.
    latent_dim: the length of a latent; 120, 140 and 160 in the paper for 128, 256 and 512 pixels.
    num_classes: 0 for a generator without labels, whose blocks get only their chunk.
    base_channels: the unit of the channels of all layers, the paper's ch.
    embedding_dim: the length of a class embedding.
    attention: the size of the map that gets self-attention; 0 for none, and None for the paper's
      64 pixels, if there is such a map.

  Raises:
    UsageError: the resolution or the size for attention is unknown, the latent does not divide into
      chunks, or a call lacks labels.
  """

  def __init__(self, resolution: int, channels: int = 3, latent_dim: int = 120,
               num_classes: int = 0, base_channels: int = 96, embedding_dim: int = 128,
               attention: int | None = None):
    super().__init__(autocast=False)
    architecture = architecture_of("BigGANGenerator", "BigGAN", ARCHITECTURES, resolution)
    first, *others = [base_channels * count for count in architecture.up]
    self.num_classes = num_classes
    self.num_chunks = len(architecture.up)
    if latent_dim % self.num_chunks:
      raise UsageError(f"BigGANGenerator.latent_dim = {latent_dim}: at {resolution} pixels a "
                       f"latent is split into {self.num_chunks} equal chunks; use a multiple of "
                       f"{self.num_chunks}")
    chunk = latent_dim // self.num_chunks
    if num_classes:
      self.embedding = self.add_weight(name="embedding", shape=(num_classes, embedding_dim),
                                       initializer="orthogonal", autocast=False)
    self.base = (4, 4, first)
    self.linear = dense(4 * 4 * first, chunk, self.dtype_policy)
    condition_dim = chunk + (embedding_dim if num_classes else 0)
    blocks = [UpBlock(filters, [ConditionalBatchNorm(condition_dim) for _ in range(2)])
              for filters in others]
    sizes = [8 * 2 ** i for i in range(len(others))]
    self.trunk = with_attention("BigGANGenerator", attention, blocks, sizes)
    self.norm = GlobalBatchNorm()
    self.to_image = conv(channels, 3)
    build_chain([*self.trunk, self.norm, self.to_image], (None, *self.base))
    self.built = True

  def call(self, z: tf.Tensor, labels: tf.Tensor | None = None,
           training: bool = False) -> tf.Tensor:
    """Draws images from `z [n, latent_dim]` and, if conditional, labels as in `class_weights`."""
    first, *chunks = tf.split(tf.cast(z, self.variable_dtype), self.num_chunks, axis=1)
    shared = []
    if self.num_classes:
      weights = class_weights(labels, self.num_classes, self.variable_dtype, "BigGANGenerator")
      shared = [tf.matmul(weights, self.embedding)]
    conditions = iter([tf.concat([chunk, *shared], axis=1) for chunk in chunks])
    x = tf.reshape(self.linear(first), [-1, *self.base])
    for layer in self.trunk:
      x = layer(x) if isinstance(layer, SelfAttention) else layer(x, next(conditions))
    x = self.to_image(tf.nn.relu(self.norm(x)))
    return tf.tanh(tf.cast(x, self.variable_dtype))


@gin.configurable
class BigGANDiscriminator(Discriminator):
  """BigGAN's discriminator: `[n, resolution, resolution, channels] -> [n]`.

  Residual blocks, ReLU and the sum over all positions give features h. The score is `<v, h> + b`,
  with classes as in `Discriminator`. All layers are spectrally normalized.

  Args:
    resolution: 8, 16, 32, 64, 128, 256 or 512 pixels.
    channels: 1 for gray, 3 for color images.
    num_classes: above 0, the score has a projection term.
    base_channels: the unit of the channels of all layers, the paper's ch.
    attention: the size of the map that gets self-attention; 0 for none, and None for the paper's
      64 pixels, if there is such a map.

  Raises:
    UsageError: the resolution or the size for attention is unknown, images have the wrong size, or
      labels are missing.
  """

  def __init__(self, resolution: int, channels: int = 3, num_classes: int = 0,
               base_channels: int = 96,
               attention: int | None = None):
    super().__init__((resolution, resolution, channels), num_classes)
    architecture = architecture_of("BigGANDiscriminator", "BigGAN", ARCHITECTURES, resolution)
    blocks = [DownBlock(base_channels * count, i < architecture.downsamplings, i == 0)
              for i, count in enumerate(architecture.down)]
    sizes = [resolution // 2 ** min(i + 1, architecture.downsamplings) for i in range(len(blocks))]
    self.trunk = with_attention("BigGANDiscriminator", attention, blocks, sizes, last=True)
    self.num_features = build_chain(self.trunk, (None, *self.image_shape))[-1]
    self.linear = dense(1, self.num_features, self.variable_dtype)
    if num_classes:
      self.embedding = dense(self.num_features, num_classes, self.variable_dtype, use_bias=False)
    self.built = True
