"""The networks of BigGAN-deep, for images of 8 to 512 pixels (Brock et al. 2018, arXiv:1809.11096).

Tables 7 to 9 of the paper describe 128, 256 and 512 pixels; 64 follows Google's compare_gan. 8, 16
and 32 continue the pattern, with two blocks for each size. The blocks are bottlenecks with identity
shortcuts: if the generator needs fewer channels, it drops some, and if the discriminator needs
more, a 1x1 convolution adds them. All initial weights are orthogonal, and initial biases are zero.
"""

from models.gan.networks.attention import SelfAttention, with_attention
from models.gan.networks.building import architecture_of, build_chain, class_weights
from models.gan.networks.discriminator import Discriminator
from models.gan.networks.normalization import ConditionalBatchNorm
from models.gan.networks.resampling import UpsampleConv2D, downsample, upsample
from models.gan.networks.residual_blocks import conv, dense, plain_conv
from replicator import GlobalBatchNorm, SpectralNorm

import gin
import keras
import tensorflow as tf

# In units of `base_channels`. The generator: channels of its 4x4 map, then after each block. The
# second of each pair of blocks doubles the size.
UP = {
    8: (4,) * 3,
    16: (4,) * 5,
    32: (4,) * 7,
    64: (16,) * 4 + (8,) * 2 + (4, 4, 2),
    128: (16,) * 4 + (8,) * 2 + (4, 4, 2, 2, 1),
    256: (16,) * 4 + (8,) * 4 + (4, 4, 2, 2, 1),
    512: (16,) * 4 + (8,) * 4 + (4, 4, 2, 2, 1, 1, 1),
}
# The discriminator: channels of its first convolution, then after each block. The first of
# each pair of blocks halves the size.
DOWN = {
    8: (2,) * 3,
    16: (2,) * 5,
    32: (2,) * 7,
    64: (2, 4, 4) + (8,) * 2 + (16,) * 4,
    128: (1, 2, 2, 4, 4) + (8,) * 2 + (16,) * 4,
    256: (1, 2, 2, 4, 4) + (8,) * 4 + (16,) * 4,
    512: (1, 1, 1, 2, 2, 4, 4) + (8,) * 4 + (16,) * 4,
}


@gin.configurable
class BigGANDeepGenerator(keras.Model):
  """BigGAN-deep's generator: `[n, latent_dim], [n] -> [n, resolution, resolution, channels]`.

  The whole latent and the class embedding are mapped to a 4x4 map, and condition the batch
  normalization of all blocks. All convolutions and linear layers are spectrally normalized, but the
  embedding is not. Pixels are in [-1, 1], float32 (float64 under its policy).

  Args:
    resolution: 8, 16, 32, 64, 128, 256 or 512 pixels.
    channels: 1 for gray, 3 for color images.
    latent_dim: the length of a latent.
    num_classes: 0 for a generator without labels, whose blocks get only the latent.
    base_channels: the unit of the channels of all layers, the paper's ch.
    embedding_dim: the length of a class embedding.
    attention: the size of the map that gets self-attention; 0 for none, and None for the paper's
      64 pixels, if there is such a map.
    negative_slope: the slope of the activations below 0; 0.2 in LOGAN.

  Raises:
    UsageError: the resolution or the size for attention is unknown, or a call lacks labels.
  """

  def __init__(self, resolution: int, channels: int = 3, latent_dim: int = 128,
               num_classes: int = 0, base_channels: int = 128, embedding_dim: int = 128,
               attention: int | None = None, negative_slope: float = 0.0):
    super().__init__(autocast=False)
    counts = architecture_of("BigGANDeepGenerator", "BigGAN-deep", UP, resolution)
    first, *others = [base_channels * count for count in counts]
    self.num_classes = num_classes
    self.negative_slope = negative_slope
    condition_dim = latent_dim
    if num_classes:
      condition_dim += embedding_dim
      self.embedding = self.add_weight(name="embedding", shape=(num_classes, embedding_dim),
                                       initializer="orthogonal", autocast=False)
    self.base = (4, 4, first)
    self.linear = dense(4 * 4 * first, condition_dim, self.dtype_policy)
    blocks = [DeepUpBlock(filters, condition_dim, double=i % 2 == 1, negative_slope=negative_slope)
              for i, filters in enumerate(others)]
    sizes = [4 * 2 ** ((i + 1) // 2) for i in range(len(others))]
    self.trunk = with_attention("BigGANDeepGenerator", attention, blocks, sizes)
    self.norm = GlobalBatchNorm()
    self.to_image = conv(channels, 3)
    build_chain([*self.trunk, self.norm, self.to_image], (None, *self.base))
    self.built = True

  def call(self, z: tf.Tensor, labels: tf.Tensor | None = None,
           training: bool = False) -> tf.Tensor:
    """Draws images from `z [n, latent_dim]` and, if conditional, labels as in `class_weights`."""
    condition = tf.cast(z, self.variable_dtype)
    if self.num_classes:
      weights = class_weights(labels, self.num_classes, self.variable_dtype, "BigGANDeepGenerator")
      condition = tf.concat([condition, tf.matmul(weights, self.embedding)], axis=1)
    x = tf.reshape(self.linear(condition), [-1, *self.base])
    for layer in self.trunk:
      x = layer(x) if isinstance(layer, SelfAttention) else layer(x, condition)
    x = self.to_image(_rectified(self.norm(x), self.negative_slope))
    return tf.tanh(tf.cast(x, self.variable_dtype))


@gin.configurable
class BigGANDeepDiscriminator(Discriminator):
  """BigGAN-deep's discriminator: `[n, resolution, resolution, channels] -> [n]`.

  A convolution, residual blocks, an activation and the sum over all positions give features h. The
  score is `<v, h> + b`, with classes as in `Discriminator`. All layers are spectrally normalized.

  Args:
    resolution: 8, 16, 32, 64, 128, 256 or 512 pixels.
    channels: 1 for gray, 3 for color images.
    num_classes: above 0, the score has a projection term.
    base_channels: the unit of the channels of all layers, the paper's ch.
    attention: the size of the map that gets self-attention; 0 for none, and None for the paper's
      64 pixels, if there is such a map.
    negative_slope: the slope of the activations below 0; 0.2 in LOGAN.

  Raises:
    UsageError: the resolution or the size for attention is unknown, images have the wrong size, or
      labels are missing.
  """

  def __init__(self, resolution: int, channels: int = 3, num_classes: int = 0,
               base_channels: int = 128,
               attention: int | None = None, negative_slope: float = 0.0):
    super().__init__((resolution, resolution, channels), num_classes)
    counts = architecture_of("BigGANDeepDiscriminator", "BigGAN-deep", DOWN, resolution)
    first, *others = [base_channels * count for count in counts]
    self.negative_slope = negative_slope
    blocks = [DeepDownBlock(filters, halve=i % 2 == 0, negative_slope=negative_slope)
              for i, filters in enumerate(others)]
    sizes = [resolution // 2 ** (i // 2 + 1) for i in range(len(others))]
    self.trunk = [conv(first, 3), *with_attention("BigGANDeepDiscriminator", attention, blocks,
                                                  sizes, last=True)]
    self.num_features = build_chain(self.trunk, (None, *self.image_shape))[-1]
    self.linear = dense(1, self.num_features, self.variable_dtype)
    if num_classes:
      self.embedding = dense(self.num_features, num_classes, self.variable_dtype, use_bias=False)
    self.built = True

  def pooled(self, x: tf.Tensor) -> tf.Tensor:
    """Sums the activated last map over positions: `[n, h, w, c] -> [n, c]`."""
    rectified = _rectified(x, self.negative_slope)
    return tf.reduce_sum(tf.cast(rectified, self.variable_dtype), axis=[1, 2])


class DeepUpBlock(keras.layers.Layer):
  """The generator's bottleneck block: `[n, h, w, i], [n, condition_dim] -> [n, h', w', filters]`.

  There are at most i filters. With `double`, h' = 2 h, else h' = h; the same for w'.
  `negative_slope` is the slope of the activations below 0.
  """

  def __init__(self, filters: int, condition_dim: int, double: bool, negative_slope: float):
    super().__init__(autocast=False)
    self.filters = filters
    self.condition_dim = condition_dim
    self.double = double
    self.negative_slope = negative_slope

  def build(self, input_shape):
    hidden = max(input_shape[-1] // 4, 1)
    self.norms = [ConditionalBatchNorm(self.condition_dim) for _ in range(4)]
    second = (UpsampleConv2D(hidden, "orthogonal") if self.double
              else plain_conv(hidden, 3))
    self.convs = [conv(hidden, 1), SpectralNorm(second), conv(hidden, 3), conv(self.filters, 1)]
    build_chain([layer for pair in zip(self.norms, self.convs, strict=True) for layer in pair],
                input_shape)

  def call(self, inputs: tf.Tensor, condition: tf.Tensor) -> tf.Tensor:
    x = inputs
    for norm, convolution in zip(self.norms, self.convs, strict=True):
      x = convolution(_rectified(norm(x, condition), self.negative_slope))
    kept = tf.cast(inputs[..., :self.filters], x.dtype)
    return x + (upsample(kept) if self.double else kept)

  def compute_output_shape(self, input_shape):
    n, h, w, _ = input_shape
    return (n, 2 * h, 2 * w, self.filters) if self.double else (n, h, w, self.filters)


class DeepDownBlock(keras.layers.Layer):
  """The discriminator's bottleneck block: `[n, h, w, i] -> [n, h', w', filters]`.

  There are at least i filters. With `halve`, h' = h / 2, else h' = h; the same for w'.
  `negative_slope` is the slope of the activations below 0.
  """

  def __init__(self, filters: int, halve: bool, negative_slope: float):
    super().__init__(autocast=False)
    self.filters = filters
    self.halve = halve
    self.negative_slope = negative_slope

  def build(self, input_shape):
    hidden = max(self.filters // 4, 1)
    self.convs = [conv(hidden, 1), conv(hidden, 3), conv(hidden, 3), conv(self.filters, 1)]
    build_chain(self.convs, input_shape)
    self.added = None
    if self.filters > input_shape[-1]:
      self.added = conv(self.filters - input_shape[-1], 1)
      self.added.build(input_shape)

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    x = inputs
    for convolution in self.convs[:-1]:
      x = convolution(_rectified(x, self.negative_slope))
    x = _rectified(x, self.negative_slope)
    x = self.convs[-1](downsample(x) if self.halve else x)
    shortcut = downsample(inputs) if self.halve else inputs
    if self.added:
      shortcut = tf.concat([shortcut, self.added(shortcut)], axis=-1)
    return x + shortcut

  def compute_output_shape(self, input_shape):
    n, h, w, _ = input_shape
    return (n, h // 2, w // 2, self.filters) if self.halve else (n, h, w, self.filters)


def _rectified(x: tf.Tensor, negative_slope: float) -> tf.Tensor:
  return tf.nn.leaky_relu(x, negative_slope) if negative_slope else tf.nn.relu(x)
