"""The residual blocks of the SN-GAN and BigGAN networks.

A 1x1 shortcut convolution commutes with nearest-neighbor upsampling and with average pooling, so
it runs at the low resolution.
"""

import dataclasses
from collections.abc import Callable, Sequence

from models.gan.networks.building import build_chain, call_chain
from models.gan.networks.resampling import ConvDownsample2D, UpsampleConv2D, downsample, upsample
from replicator import GlobalBatchNorm, SpectralNorm

import keras
import tensorflow as tf

Kernels = Callable[[int], keras.initializers.Initializer | str]
"""Makes the initializer of kernels of a given size, 3 or 1."""


@dataclasses.dataclass(frozen=True)
class Architecture:
  """Channels of the networks of one resolution; BigGAN's are multiplied by `base_channels`."""
  # In the generator's 4x4 map, then after each of its blocks, which double the size.
  up: tuple[int, ...]
  down: tuple[int, ...]  # After each block of the discriminator and of an encoder.
  downsamplings: int  # The number of leading `down` blocks that halve the size.


_orthogonal: Kernels = lambda size: "orthogonal"  # BigGAN's.


def plain_conv(filters: int, size: int, kernels: Kernels = _orthogonal) -> keras.layers.Conv2D:
  """Returns a convolution with zero padding."""
  return keras.layers.Conv2D(filters, size, padding="same", kernel_initializer=kernels(size))


def conv(filters: int, size: int) -> SpectralNorm:
  """Makes BigGAN's convolution: spectrally normalized, initially orthogonal."""
  return SpectralNorm(plain_conv(filters, size))


def dense(units: int, inputs: int, dtype: str, use_bias: bool = True,
          initializer: str = "orthogonal") -> SpectralNorm:
  """Makes and builds a spectrally normalized linear layer."""
  layer = SpectralNorm(keras.layers.Dense(units, use_bias=use_bias, dtype=dtype,
                                          kernel_initializer=initializer))
  layer.build((None, inputs))
  return layer


class UpBlock(keras.layers.Layer):
  """A generator block that doubles the size: `[n, h, w, i] -> [n, 2 h, 2 w, filters]`.

  Its two norms get the condition if there is one. With `spectral`, the convolutions are spectrally
  normalized.
  """

  def __init__(self, filters: int, norms: Sequence[keras.layers.Layer],
               kernels: Kernels = _orthogonal, spectral: bool = True):
    super().__init__(autocast=False)
    self.norm1, self.norm2 = norms
    self.conv1, self.conv2, self.shortcut = (
        SpectralNorm(layer) if spectral else layer for layer in (
            UpsampleConv2D(filters, kernels(3)), plain_conv(filters, 3, kernels),
            plain_conv(filters, 1, kernels)))

  def build(self, input_shape):
    build_chain([self.norm1, self.conv1, self.norm2, self.conv2], input_shape)
    self.shortcut.build(input_shape)

  def call(self, inputs: tf.Tensor, condition: tf.Tensor | None = None) -> tf.Tensor:
    given = [] if condition is None else [condition]
    x = self.conv1(tf.nn.relu(self.norm1(inputs, *given)))
    x = self.conv2(tf.nn.relu(self.norm2(x, *given)))
    return x + upsample(self.shortcut(inputs))

  def compute_output_shape(self, input_shape):
    return self.conv1.compute_output_shape(input_shape)


class DownBlock(keras.layers.Layer):
  """A block of a discriminator or an encoder: `[n, h, w, i] -> [n, h', w', filters]`.

  The shortcut is a convolution if the block halves the size or changes the number of channels, and
  the identity otherwise.

  Args:
    filters: the number of output channels.
    halve: whether h' = h / 2, else h' = h; the same for w'.
    first: whether the inputs are images, to which the block applies no ReLU.
    kernels: makes the initializers of the convolutions.
    spectral: True normalizes the convolutions spectrally; False uses batch normalization.
    narrow: whether there are i channels between the two convolutions, unless `first`; otherwise
      there are `filters`.
  """

  def __init__(self, filters: int, halve: bool, first: bool,
               kernels: Kernels = _orthogonal, spectral: bool = True, narrow: bool = False):
    super().__init__(autocast=False)
    self.filters = filters
    self.halve = halve
    self.first = first
    self.spectral = spectral
    self.narrow = narrow
    self._kernels = kernels

  def build(self, input_shape):
    inputs = input_shape[-1]
    # The order in which layers are created determines their weights for a seed.
    if self.narrow:
      convs = [plain_conv(self.filters if self.first else inputs, 3, self._kernels), self._last()]
    else:
      last = self._last()
      convs = [plain_conv(self.filters, 3, self._kernels), last]
    conv1, conv2 = map(self._wrap, convs)
    before = [] if self.first else self._rectify()
    self.residual = [*before, conv1, *self._rectify(), conv2]
    build_chain(self.residual, input_shape)
    self.shortcut = None
    if self.halve or inputs != self.filters:
      self.shortcut = self._wrap(plain_conv(self.filters, 1, self._kernels))
      self.shortcut.build(input_shape)

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    x = call_chain(self.residual, inputs)
    shortcut = downsample(inputs) if self.halve else inputs
    x += self.shortcut(shortcut) if self.shortcut else shortcut
    # Separates this sum from the next block's ReLU. TensorFlow's graph optimizer would try to fuse
    # the two, find that the shortcut also needs the sum, and report an error.
    return tf.ensure_shape(x, x.shape)

  def compute_output_shape(self, input_shape):
    n, h, w, _ = input_shape
    return (n, h // 2, w // 2, self.filters) if self.halve else (n, h, w, self.filters)

  def _last(self) -> keras.layers.Layer:
    if self.halve:
      return ConvDownsample2D(self.filters, self._kernels(3))
    return plain_conv(self.filters, 3, self._kernels)

  def _wrap(self, layer):
    return SpectralNorm(layer) if self.spectral else layer

  def _rectify(self):
    return [keras.layers.ReLU()] if self.spectral else [GlobalBatchNorm(), keras.layers.ReLU()]
