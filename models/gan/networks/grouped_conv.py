"""A grouped convolution with gradients of any order on every device."""

import keras
import tensorflow as tf


def normal(gain: float = 1.0) -> keras.initializers.Initializer:
  """Makes a normal initializer with variance gain^2 / fan_in, or zeros if the gain is 0."""
  # New in each call, because a Keras initializer repeats its numbers when reused.
  if not gain:
    return keras.initializers.Zeros()
  return keras.initializers.VarianceScaling(gain ** 2, "fan_in", "untruncated_normal")


class GroupedConv2D(keras.layers.Layer):
  """A 3x3 grouped convolution with zero padding: `[n, h, w, i] -> [n, h, w, o]`.

  Each group has `i / groups` inputs and `o / groups` outputs. The variables are
  `kernel [3, 3, i / groups, o]`, initially with variance gain^2 / fan_in, and `bias [o]`.
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
  """Convolves groups of channels: `[n, h, w, i], [k, k, i / groups, o] -> [n, h, w, o]`."""
  # On CPUs, only oneDNN implements the gradients of TensorFlow's grouped convolution, but not in
  # float64, and by default only with AVX-512. One convolution per group is as fast as oneDNN's. On
  # accelerators, each would be a kernel launch. Keras compiles grouped convolutions with XLA, which
  # takes much longer on CPUs.
  if groups == 1 or any(d.device_type != "CPU" for d in tf.config.list_logical_devices()):
    return tf.nn.conv2d(x, kernel, 1, "SAME")
  _, h, w, channels = x.shape
  # `tf.split` and `tf.concat` would be slower: their second gradients pad each group with zeros.
  parts = tf.unstack(tf.reshape(x, [-1, h, w, groups, channels // groups]), axis=3)
  kernels = tf.unstack(tf.reshape(kernel, [*kernel.shape[:3], groups, -1]), axis=3)
  outputs = [tf.nn.conv2d(*pair, 1, "SAME") for pair in zip(parts, kernels, strict=True)]
  return tf.reshape(tf.stack(outputs, axis=3), [-1, h, w, kernel.shape[-1]])
