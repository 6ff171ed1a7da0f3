"""The residual block of R3GAN, and the resampling between its stages.

Neither has a normalization layer. Initial weights are normal with the variance gain^2 / fan_in, and
initial biases are zero.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from models.gan.networks.building import SameShape

SLOPE = 0.2  # What a leaky ReLU multiplies negative inputs by.
RELU_GAIN = (2 / (1 + SLOPE ** 2)) ** 0.5  # Keeps the variance through a convolution and a ReLU.


class ResidualBlock(SameShape):
  """An inverted bottleneck: `[n, h, w, c] -> [n, h, w, c]` (Huang et al. 2024, arXiv:2501.05441).

  A 1x1 convolution to 2c channels, a 3x3 convolution of groups of channels, and a 1x1 convolution
  back to c. A bias and a leaky ReLU follow the first two. The last one starts at zero, so that the
  block starts as the identity.

  Args:
    groups: the number of groups of the 3x3 convolution, a divisor of 2c.
    gain: of the initial weights of the first two convolutions.
    dtype: a dtype policy of the block's own.
  """

  def __init__(self, groups: int, gain: float, dtype: str | None = None):
    super().__init__(autocast=False, dtype=dtype)
    self.groups = groups
    self.gain = gain

  def build(self, input_shape):
    channels = input_shape[-1]
    inner = (*input_shape[:-1], 2 * channels)
    self.expand = conv1(2 * channels, self.gain, self.dtype_policy, use_bias=True)
    self.mix = GroupedConv2D(2 * channels, self.groups, self.gain, dtype=self.dtype_policy)
    self.reduce = conv1(channels, 0.0, self.dtype_policy)
    self.expand.build(input_shape)
    self.mix.build(inner)
    self.reduce.build(inner)

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    x = tf.cast(inputs, self.compute_dtype)
    y = tf.nn.leaky_relu(self.expand(x), SLOPE)
    y = tf.nn.leaky_relu(self.mix(y), SLOPE)
    return x + self.reduce(y)


class GroupedConv2D(keras.layers.Layer):
  """A 3x3 convolution of groups of channels, with zero padding: `[n, h, w, i] -> [n, h, w, o]`.

  Each of the groups has `i / groups` inputs and `o / groups` outputs. The variables are
  `kernel [3, 3, i / groups, o]` and `bias [o]`.

  Args:
    filters: o, the number of output channels.
    groups: a divisor of i and o.
    gain: the initial weights have the variance gain^2 / fan_in.
  """

  def __init__(self, filters: int, groups: int, gain: float, **kwargs):
    super().__init__(**kwargs)
    self.filters = filters
    self.groups = groups
    self.gain = gain

  def build(self, input_shape):
    shape = (3, 3, input_shape[-1] // self.groups, self.filters)
    self.kernel = self.add_weight(name="kernel", shape=shape, initializer=normal(self.gain))
    self.bias = self.add_weight(name="bias", shape=(self.filters,), initializer="zeros")

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    outputs = grouped_conv2d(inputs, tf.convert_to_tensor(self.kernel), self.groups)
    return tf.nn.bias_add(outputs, self.bias)

  def compute_output_shape(self, input_shape):
    return *input_shape[:-1], self.filters


def grouped_conv2d(x: tf.Tensor, kernel: tf.Tensor, groups: int) -> tf.Tensor:
  """`[n, h, w, i], [k, k, i / groups, o] -> [n, h, w, o]`, with gradients of any order anywhere."""
  # On CPUs TensorFlow's own grouped convolution has gradients only by oneDNN: not in float64, and
  # by default not without AVX-512. One convolution for each group is as fast as oneDNN's. On
  # accelerators each would be a kernel launch. Keras compiles grouped convolutions with XLA, which
  # takes much longer on CPUs.
  if groups == 1 or any(d.device_type != "CPU" for d in tf.config.list_logical_devices()):
    return tf.nn.conv2d(x, kernel, 1, "SAME")
  _, h, w, channels = x.shape
  # `tf.split` and `tf.concat` would be slower: their second gradients pad each group with zeros.
  parts = tf.unstack(tf.reshape(x, [-1, h, w, groups, channels // groups]), axis=3)
  kernels = tf.unstack(tf.reshape(kernel, [*kernel.shape[:3], groups, -1]), axis=3)
  outputs = [tf.nn.conv2d(*pair, 1, "SAME") for pair in zip(parts, kernels, strict=True)]
  return tf.reshape(tf.stack(outputs, axis=3), [-1, h, w, kernel.shape[-1]])


class Transition(keras.layers.Layer):
  """Doubles or halves the size of a map, and changes its channels where they differ.

  The 1x1 convolution for the channels runs at the smaller of the two sizes.

  Args:
    filters: o, the number of output channels.
    up: True for `upsample`, `[n, h, w, i] -> [n, 2 h, 2 w, o]`; False for `downsample`.
  """

  def __init__(self, filters: int, up: bool):
    super().__init__(autocast=False)
    self.filters = filters
    self.up = up

  def build(self, input_shape):
    self.conv = None if input_shape[-1] == self.filters else conv1(self.filters)
    if self.conv:
      self.conv.build(input_shape)

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    x = tf.cast(inputs, self.compute_dtype)
    x = x if self.up else downsample(x)
    x = self.conv(x) if self.conv else x
    return upsample(x) if self.up else x

  def compute_output_shape(self, input_shape):
    n, h, w, _ = input_shape
    return (n, 2 * h, 2 * w, self.filters) if self.up else (n, h // 2, w // 2, self.filters)


def downsample(x: tf.Tensor) -> tf.Tensor:
  """The low-pass filter [1, 3, 3, 1] / 8 along both axes, with stride 2: half the height and width.

  `[n, 2 h, 2 w, c] -> [n, h, w, c]`, with zeros beyond the border.
  """
  _, h, w, c = x.shape
  # Products with small matrices take a third of the time of a depthwise convolution and its
  # gradients at 32 pixels, and half at 8.
  x = tf.matmul(_low_pass(h, x.dtype), tf.reshape(x, [-1, h, w * c]))
  x = tf.matmul(_low_pass(w, x.dtype), tf.reshape(x, [-1, w, c]))
  return tf.reshape(x, [-1, h // 2, w // 2, c])


def upsample(x: tf.Tensor) -> tf.Tensor:
  """Four times the transpose of `downsample`: `[n, h, w, c] -> [n, 2 h, 2 w, c]`."""
  _, h, w, c = x.shape
  x = tf.matmul(2 * _low_pass(2 * w, x.dtype), tf.reshape(x, [-1, w, c]), transpose_a=True)
  x = tf.matmul(2 * _low_pass(2 * h, x.dtype), tf.reshape(x, [-1, h, 2 * w * c]), transpose_a=True)
  return tf.reshape(x, [-1, 2 * h, 2 * w, c])


def _low_pass(size: int, dtype: tf.DType) -> tf.Tensor:
  """The matrix [size / 2, size] of the filter along one axis."""
  # Output i is the middle of the inputs 2i and 2i + 1.
  distance = np.abs(np.subtract.outer(2 * np.arange(size // 2) + 0.5, np.arange(size)))
  return tf.constant(np.select([distance == 0.5, distance == 1.5], [3 / 8, 1 / 8], 0), dtype)


def conv1(filters: int, gain: float = 1.0, dtype: Any = None, use_bias: bool = False
          ) -> keras.layers.Dense:
  """A 1x1 convolution. As a matrix product its gradients are faster than those of `Conv2D`."""
  return keras.layers.Dense(filters, use_bias=use_bias, kernel_initializer=normal(gain),
                            dtype=dtype)


def normal(gain: float = 1.0) -> keras.initializers.Initializer:
  """Normal numbers of the variance gain^2 / fan_in; zeros for the gain 0."""
  # A new one in each call, because a Keras initializer repeats its numbers when it is reused.
  if not gain:
    return keras.initializers.Zeros()
  return keras.initializers.VarianceScaling(gain ** 2, "fan_in", "untruncated_normal")
