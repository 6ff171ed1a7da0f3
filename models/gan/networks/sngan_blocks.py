"""The residual blocks of the SN-GAN networks.

A 1x1 shortcut convolution commutes with nearest-neighbor upsampling and with average pooling, so
it runs at the low resolution. Initial weights are Glorot-uniform, with gain sqrt(2) in the 3x3
convolutions and gain 1 in the shortcuts. Initial biases are zero.
"""

import keras
import tensorflow as tf

from models.gan.networks.building import build_chain
from models.gan.networks.normalization import ClassBatchNorm
from models.gan.networks.resampling import ConvDownsample2D, UpsampleConv2D, downsample, upsample
from replicator import GlobalBatchNorm, SpectralNorm


class UpBlock(keras.layers.Layer):
  """The generator's residual block: `[n, h, w, i], [n] -> [n, 2 h, 2 w, filters]`."""

  def __init__(self, filters: int, num_classes: int):
    super().__init__(autocast=False)
    self.num_classes = num_classes
    self.norm1, self.norm2 = self._norm(), self._norm()
    self.conv1 = UpsampleConv2D(filters, kernel_initializer=_glorot(gain_squared=2))
    self.conv2 = _conv3(filters)
    self.shortcut = keras.layers.Conv2D(filters, 1)

  def build(self, input_shape):
    build_chain([self.norm1, self.conv1, self.norm2, self.conv2], input_shape)
    self.shortcut.build(input_shape)

  def call(self, inputs: tf.Tensor, labels: tf.Tensor | None = None) -> tf.Tensor:
    condition = {"labels": labels} if self.num_classes else {}
    x = self.conv1(tf.nn.relu(self.norm1(inputs, **condition)))
    x = self.conv2(tf.nn.relu(self.norm2(x, **condition)))
    return x + upsample(self.shortcut(inputs))

  def compute_output_shape(self, input_shape):
    return self.conv1.compute_output_shape(input_shape)

  def _norm(self):
    return ClassBatchNorm(self.num_classes) if self.num_classes else GlobalBatchNorm()


class DownBlock(keras.layers.Layer):
  """Residual block of discriminator and encoder: `[n, h, w, i] -> [n, h', w', filters]`.

  Args:
    filters: the number of output channels.
    halve: whether h' = h / 2, else h' = h; the same for w'.
    first: whether the inputs are images, to which the block applies no ReLU.
    spectral: True normalizes the convolutions spectrally; False uses batch normalization.
  """

  def __init__(self, filters: int, halve: bool, first: bool, spectral: bool):
    super().__init__(autocast=False)
    self.filters = filters
    self.halve = halve
    self.first = first
    self.spectral = spectral

  def build(self, input_shape):
    inputs = input_shape[-1]
    conv1 = self._wrap(_conv3(self.filters if self.first else inputs))
    conv2 = self._wrap(
        ConvDownsample2D(self.filters, kernel_initializer=_glorot(gain_squared=2))
        if self.halve else _conv3(self.filters))
    before = [] if self.first else self._rectify()
    self.residual = [*before, conv1, *self._rectify(), conv2]
    build_chain(self.residual, input_shape)
    self.shortcut = None
    if self.halve or inputs != self.filters:
      self.shortcut = self._wrap(keras.layers.Conv2D(self.filters, 1))
      self.shortcut.build(input_shape)

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    x = inputs
    for layer in self.residual:
      x = layer(x)
    shortcut = downsample(inputs) if self.halve else inputs
    x += self.shortcut(shortcut) if self.shortcut else shortcut
    # Separates this sum from the next block's ReLU. TensorFlow's graph optimizer would try to fuse
    # the two, find that the shortcut needs the sum too, and report an error.
    return tf.ensure_shape(x, x.shape)

  def compute_output_shape(self, input_shape):
    n, h, w, _ = input_shape
    return (n, h // 2, w // 2, self.filters) if self.halve else (n, h, w, self.filters)

  def _wrap(self, layer):
    return SpectralNorm(layer) if self.spectral else layer

  def _rectify(self):
    return [keras.layers.ReLU()] if self.spectral else [GlobalBatchNorm(), keras.layers.ReLU()]


def _conv3(filters: int) -> keras.layers.Layer:
  return keras.layers.Conv2D(filters, 3, padding="same",
                             kernel_initializer=_glorot(gain_squared=2))


def _glorot(gain_squared: float) -> keras.initializers.Initializer:
  # A new one in each call, because a Keras initializer repeats its numbers when it is reused.
  return keras.initializers.VarianceScaling(gain_squared, mode="fan_avg", distribution="uniform")
