"""The residual blocks of the SN-GAN and BigGAN networks, of any convolutions.

A 1x1 shortcut convolution commutes with nearest-neighbor upsampling and with average pooling, so
it runs at the low resolution.
"""

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from models.gan.networks.building import build_chain
from models.gan.networks.resampling import downsample, upsample
from replicator import GlobalBatchNorm, SpectralNorm


class UpBlock(keras.layers.Layer):
  """A block of a generator, which doubles the size: `[n, h, w, i] -> [n, 2 h, 2 w, filters]`.

  Args:
    norms: two batch normalizations, which are called with the condition if there is one.
    convs: two 3x3 convolutions, of which the first upsamples.
    shortcut: a 1x1 convolution.
  """

  def __init__(self, norms: Sequence[keras.layers.Layer],
               convs: Sequence[keras.layers.Layer], shortcut: keras.layers.Layer):
    super().__init__(autocast=False)
    self.norm1, self.norm2 = norms
    self.conv1, self.conv2 = convs
    self.shortcut = shortcut

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
    spectral: True normalizes the convolutions spectrally; False uses batch normalization.
    convs: makes the two 3x3 convolutions from i; the second one downsamples if the block does.
    shortcut: makes the 1x1 convolution.
  """

  def __init__(self, filters: int, halve: bool, first: bool, spectral: bool,
               convs: Callable[[int], Sequence[keras.layers.Layer]],
               shortcut: Callable[[], keras.layers.Layer]):
    super().__init__(autocast=False)
    self.filters = filters
    self.halve = halve
    self.first = first
    self.spectral = spectral
    self._make_convs = convs
    self._make_shortcut = shortcut

  def build(self, input_shape):
    conv1, conv2 = map(self._wrap, self._make_convs(input_shape[-1]))
    before = [] if self.first else self._rectify()
    self.residual = [*before, conv1, *self._rectify(), conv2]
    build_chain(self.residual, input_shape)
    self.shortcut = None
    if self.halve or input_shape[-1] != self.filters:
      self.shortcut = self._wrap(self._make_shortcut())
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
