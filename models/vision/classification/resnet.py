"""Residual networks that classify images: ResNet-18 to 152, and those for CIFAR-10.

He et al. 2015 (arXiv:1512.03385). ResNet-18 and 34 have blocks of two 3x3 convolutions. ResNet-50,
101 and 152 have bottlenecks of a 1x1, a 3x3 and a 1x1 convolution, with the stride in the 3x3: this
is "v1.5", with the same logits as torchvision's networks for the same weights. ResNet-20, 32, 44,
56 and 110 are those of section 4.2, for images of 32 pixels, with parameter-free shortcuts.

Normalization is over the examples of all replicas, so that training is the same on any number of
them. Convolutions are initially normal with variance 2 / fan_out (He et al. 2015,
arXiv:1502.01852). As in Goyal et al. 2017 (arXiv:1706.02677), section 5.1, the last layer starts
with a standard deviation of 0.01, and the last normalization of each block with gamma = 0, except
in the networks for CIFAR-10, where gamma starts at 1.
"""

from typing import NamedTuple

from replicator import GlobalBatchNorm, UsageError
from replicator.errors import nearest

import gin
import keras
import tensorflow as tf


class ResNetDescription(NamedTuple):
  """The properties in which residual networks differ."""

  blocks: tuple[int, ...]  # In each stage; all stages but the first halve the size.
  # Whether a block has three convolutions, with four times the channels at its end.
  bottleneck: bool = False
  # Whether it is for images of 32 pixels: with 16 instead of 64 channels in the first stage, and
  # with shortcuts that take every second pixel and add channels of zeros if shapes differ, instead
  # of a 1x1 convolution.
  for_cifar: bool = False


STEMS = ("large", "small")
ARCHITECTURES = {
    18: ResNetDescription((2, 2, 2, 2)),
    34: ResNetDescription((3, 4, 6, 3)),
    50: ResNetDescription((3, 4, 6, 3), bottleneck=True),
    101: ResNetDescription((3, 4, 23, 3), bottleneck=True),
    152: ResNetDescription((3, 8, 36, 3), bottleneck=True),
    **{6 * n + 2: ResNetDescription((n, n, n), for_cifar=True) for n in (3, 5, 7, 9, 18)},
}
"""The descriptions by depth, the number of layers with weights on the longest path."""


@gin.configurable(denylist=["num_classes", "channels"])
class ResNet(keras.Model):
  """An image classifier: `[n, h, w, channels] -> [n, num_classes]`, the logits of the classes.

  From the average over positions on, it computes in float32 (float64 under its policy), even if the
  blocks have a lower precision.

  Args:
    num_classes: the number of classes.
    channels: 1 for gray, 3 for color images.
    depth: 18, 34, 50, 101 or 152; for images of 32 pixels 20, 32, 44, 56 or 110.
    stem: 'large' for a 7x7 convolution and max pooling, which reduce the size to a quarter; 'small'
      for a 3x3 convolution, which keeps the size; None for that of the paper.
    width_multiplier: multiplies the channels of all layers of the published network.

  Attributes:
    num_features: the number of channels after the last stage.

  Raises:
    UsageError: the depth or the stem is unknown, or `width_multiplier` leaves no channel.
  """

  def __init__(self, num_classes: int, channels: int = 3, depth: int = 50,
               stem: str | None = None, width_multiplier: float = 1.0):
    super().__init__(autocast=False)
    if depth not in ARCHITECTURES:
      raise UsageError(f"ResNet.depth = {depth!r}: no such network; use one of "
                       f"{', '.join(map(str, ARCHITECTURES))}")
    if stem not in (None, *STEMS):
      raise UsageError(f"ResNet.stem = {stem!r}: no such stem.{nearest(str(stem), STEMS)} Use one "
                       f"of: {', '.join(STEMS)}")
    blocks, bottleneck, for_cifar = ARCHITECTURES[depth]
    base = 16 if for_cifar else 64
    first = round(base * width_multiplier)
    if first < 1:
      raise UsageError(f"ResNet.width_multiplier = {width_multiplier!r} leaves layers of {base} "
                       f"channels with none: use at least {1 / base}")
    self.is_large = stem == "large" if stem else not for_cifar
    self.stem = ConvNorm(first, 7, stride=2) if self.is_large else ConvNorm(first, 3)
    self.blocks = [
        Block(first * 2 ** stage, stride=2 if stage and not i else 1,
              bottleneck=bottleneck, projected=not for_cifar)
        for stage, count in enumerate(blocks) for i in range(count)]
    self.linear = keras.layers.Dense(num_classes, dtype=self.variable_dtype,
                                     kernel_initializer=keras.initializers.RandomNormal(0.0, 0.01))
    trunk: list[ConvNorm | Block] = [self.stem, *self.blocks]
    shape: tuple = (None, None, None, channels)
    for layer in trunk:
      layer.build(shape)
      shape = (None, None, None, layer.filters)
    self.num_features = shape[-1]
    self.linear.build((None, self.num_features))
    self.built = True

  def call(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
    """Returns logits `[n, num_classes]` of images `[n, h, w, channels]` of any size."""
    return self.linear(self.features(images, training))

  def features(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
    """Returns features `[n, num_features]`, the inputs of the last layer; see `call`."""
    x = tf.nn.relu(self.stem(images, training=training))
    if self.is_large:
      # Zero padding does not affect the maximum, because ReLUs are nonnegative.
      x = tf.nn.max_pool2d(_padded(x, 1), 3, 2, "VALID")
    for block in self.blocks:
      x = block(x, training=training)
    return tf.reduce_mean(tf.cast(x, self.variable_dtype), [1, 2])


class Block(keras.layers.Layer):
  """A residual block, `relu(x + f(x))`: `[n, h, w, i] -> [n, h / stride, w / stride, filters]`.

  Args:
    channels: channels of its 3x3 convolutions.
    stride: 1, or 2 to halve the size.
    bottleneck: whether f has three convolutions, and `filters` is `4 channels`; else `channels`.
    projected: whether a shortcut is a 1x1 convolution if shapes differ, see `ResNetDescription`.
      Then gamma is initially 0, and so is f.
  """

  def __init__(self, channels: int, stride: int, bottleneck: bool, projected: bool):
    super().__init__(autocast=False)
    self.stride = stride
    self.projected = projected
    self.filters = 4 * channels if bottleneck else channels
    gamma = "zeros" if projected else "ones"
    self.residual = (
        [ConvNorm(channels, 1), ConvNorm(channels, 3, stride), ConvNorm(self.filters, 1, 1, gamma)]
        if bottleneck else [ConvNorm(channels, 3, stride), ConvNorm(channels, 3, 1, gamma)])
    self.shortcut: ConvNorm | None = None

  def build(self, input_shape):
    if self.projected and (self.stride > 1 or input_shape[-1] != self.filters):
      self.shortcut = ConvNorm(self.filters, 1, self.stride)
      self.shortcut.build(input_shape)
    for layer in self.residual:
      layer.build(input_shape)
      input_shape = (*input_shape[:-1], layer.filters)

  def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
    x = inputs
    for layer in self.residual[:-1]:
      x = tf.nn.relu(layer(x, training=training))
    x = self.residual[-1](x, training=training)
    return tf.nn.relu(x + self._shortcut(inputs, training))

  def _shortcut(self, x: tf.Tensor, training: bool) -> tf.Tensor:
    if self.shortcut is not None:
      return self.shortcut(x, training=training)
    added = self.filters - x.shape[-1]
    if self.stride > 1:
      x = x[:, ::self.stride, ::self.stride]
    return tf.cast(tf.pad(x, [[0, 0]] * 3 + [[0, added]]) if added else x, self.compute_dtype)


class ConvNorm(keras.layers.Layer):
  """A convolution and a `GlobalBatchNorm`: `[n, h, w, i] -> [n, h / stride, w / stride, filters]`.

  It pads both sides by half of the kernel, as PyTorch's networks do. With a stride of 2, 'same'
  would pad the right side more than the left. For a 1x1 kernel, pixels are subsampled first,
  because the gradient of a 1x1 convolution with a stride is unsafe on CPUs: see
  `replicator.strategies.tracing.graphs`. The `size` of a kernel is odd; `gamma` is the initializer
  of the normalization's scale.
  """

  def __init__(self, filters: int, size: int, stride: int = 1, gamma: str = "ones"):
    super().__init__(autocast=False)
    self.filters = filters
    self.skip = stride if size == 1 else 1
    self.margin = size // 2 if stride > 1 else 0
    self.conv = keras.layers.Conv2D(
        filters, size, stride // self.skip, padding="same" if stride == 1 else "valid",
        use_bias=False,
        kernel_initializer=keras.initializers.VarianceScaling(
            2.0, mode="fan_out", distribution="untruncated_normal"))
    self.norm = GlobalBatchNorm(gamma_initializer=gamma)

  def build(self, input_shape):
    self.conv.build(input_shape)
    self.norm.build((*input_shape[:-1], self.filters))

  def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
    x = inputs[:, ::self.skip, ::self.skip] if self.skip > 1 else inputs
    x = _padded(x, self.margin) if self.margin else x
    return self.norm(self.conv(x), training=training)


def _padded(x: tf.Tensor, margin: int) -> tf.Tensor:
  return tf.pad(x, [[0, 0], [margin, margin], [margin, margin], [0, 0]])
