"""The residual blocks of the BigGAN networks (Brock et al. 2018, arXiv:1809.11096, figure 15).

A 1x1 shortcut convolution commutes with nearest-neighbor upsampling and with average pooling, so
it runs at the low resolution. All initial weights are orthogonal, and initial biases are zero.
"""

import keras
import tensorflow as tf

from models.gan.networks.building import build_chain
from models.gan.networks.normalization import ConditionalBatchNorm
from models.gan.networks.resampling import ConvDownsample2D, UpsampleConv2D, downsample, upsample
from replicator import GlobalBatchNorm, SpectralNorm


class BigGANUpBlock(keras.layers.Layer):
  """The generator's block: `[n, h, w, i], [n, condition_dim] -> [n, 2 h, 2 w, filters]`."""

  def __init__(self, filters: int, condition_dim: int):
    super().__init__(autocast=False)
    self.norm1, self.norm2 = (ConditionalBatchNorm(condition_dim) for _ in range(2))
    self.conv1 = SpectralNorm(UpsampleConv2D(filters, kernel_initializer="orthogonal"))
    self.conv2 = SpectralNorm(conv(filters, 3))
    self.shortcut = SpectralNorm(conv(filters, 1))

  def build(self, input_shape):
    build_chain([self.norm1, self.conv1, self.norm2, self.conv2], input_shape)
    self.shortcut.build(input_shape)

  def call(self, inputs: tf.Tensor, condition: tf.Tensor) -> tf.Tensor:
    x = self.conv1(tf.nn.relu(self.norm1(inputs, condition)))
    x = self.conv2(tf.nn.relu(self.norm2(x, condition)))
    return x + upsample(self.shortcut(inputs))

  def compute_output_shape(self, input_shape):
    return self.conv1.compute_output_shape(input_shape)


class BigGANDownBlock(keras.layers.Layer):
  """Block of discriminator and encoder: `[n, h, w, i] -> [n, h', w', filters]`.

  The shortcut is a convolution if the block halves the size or changes the number of channels, and
  the identity otherwise.

  Args:
    filters: the number of output channels, and of those between the two convolutions.
    halve: whether h' = h / 2, else h' = h; the same for w'.
    first: whether the inputs are images, to which the block applies no ReLU.
    spectral: True normalizes the convolutions spectrally; False uses batch normalization.
  """

  def __init__(self, filters: int, halve: bool, first: bool = False, spectral: bool = True):
    super().__init__(autocast=False)
    self.filters = filters
    self.halve = halve
    self.first = first
    self.spectral = spectral

  def build(self, input_shape):
    last = (ConvDownsample2D(self.filters, kernel_initializer="orthogonal") if self.halve
            else conv(self.filters, 3))
    before = [] if self.first else self._rectify()
    self.residual = [*before, self._wrap(conv(self.filters, 3)), *self._rectify(), self._wrap(last)]
    build_chain(self.residual, input_shape)
    self.shortcut = None
    if self.halve or input_shape[-1] != self.filters:
      self.shortcut = self._wrap(conv(self.filters, 1))
      self.shortcut.build(input_shape)

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    x = inputs
    for layer in self.residual:
      x = layer(x)
    shortcut = downsample(inputs) if self.halve else inputs
    x += self.shortcut(shortcut) if self.shortcut else shortcut
    # Separates this sum from the next block's ReLU; TensorFlow's graph optimizer would try to fuse
    # the two, and report an error.
    return tf.ensure_shape(x, x.shape)

  def compute_output_shape(self, input_shape):
    n, h, w, _ = input_shape
    return (n, h // 2, w // 2, self.filters) if self.halve else (n, h, w, self.filters)

  def _wrap(self, layer):
    return SpectralNorm(layer) if self.spectral else layer

  def _rectify(self):
    return [keras.layers.ReLU()] if self.spectral else [GlobalBatchNorm(), keras.layers.ReLU()]


def conv(filters: int, size: int) -> keras.layers.Layer:
  """A convolution with zero padding, orthogonal at first."""
  return keras.layers.Conv2D(filters, size, padding="same", kernel_initializer="orthogonal")


def dense(units: int, inputs: int, dtype: str, use_bias: bool = True) -> SpectralNorm:
  """A spectrally normalized linear layer with its variables, orthogonal at first."""
  layer = SpectralNorm(keras.layers.Dense(units, use_bias=use_bias, dtype=dtype,
                                          kernel_initializer="orthogonal"))
  layer.build((None, inputs))
  return layer
