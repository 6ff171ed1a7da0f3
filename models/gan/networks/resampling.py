"""Resampling folded into convolutions: the same functions with 2.25 times fewer operations.

Upsampling repeats each pixel, so neighboring taps of a 3x3 convolution multiply the same value, and
can be summed beforehand. Average pooling sums neighboring outputs, whose taps overlap and can also
be summed beforehand. Both give the same 4x4 kernel, the result of `fold`. Zero padding at the
borders folds in the same way.
"""

import keras
import tensorflow as tf


def fold(kernel: tf.Tensor) -> tf.Tensor:
  """Sums four copies of a 3x3 kernel, shifted by (0 or 1, 0 or 1).

  `[3, 3, i, o] -> [4, 4, i, o]`: the kernel convolved with a 2x2 box of ones.
  """
  rows = tf.pad(kernel, [[0, 1], [0, 0], [0, 0], [0, 0]])
  rows += tf.pad(kernel, [[1, 0], [0, 0], [0, 0], [0, 0]])
  folded = tf.pad(rows, [[0, 0], [0, 1], [0, 0], [0, 0]])
  folded += tf.pad(rows, [[0, 0], [1, 0], [0, 0], [0, 0]])
  return folded


def upsample(images: tf.Tensor) -> tf.Tensor:
  """Upsamples to twice the size by nearest neighbor: `[n, h, w, c] -> [n, 2 h, 2 w, c]`.

  This is four times the transpose of `downsample`, a fast operation with a fast gradient. Repeating
  pixels by broadcasting has a slow gradient.
  """
  n, h, w, c = keras.ops.shape(images)
  return tf.raw_ops.AvgPoolGrad(orig_input_shape=[n, 2 * h, 2 * w, c], grad=4 * images,
                                ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="VALID")


def downsample(images: tf.Tensor) -> tf.Tensor:
  """Averages blocks of 2x2 pixels: `[n, 2 h, 2 w, c] -> [n, h, w, c]`."""
  return tf.nn.avg_pool2d(images, 2, 2, "VALID")


class _FoldedConv2D(keras.layers.Layer):
  """The variables of a 3x3 convolution with bias: `kernel [3, 3, i, o]` and `bias [o]`.

  The initializer sees the fans of the 3x3 kernel.
  """

  def __init__(self, filters: int, kernel_initializer="glorot_uniform", **kwargs):
    super().__init__(**kwargs)
    self.filters = filters
    self.kernel_initializer = keras.initializers.get(kernel_initializer)

  def build(self, input_shape):
    self.kernel = self.add_weight(name="kernel", shape=(3, 3, input_shape[-1], self.filters),
                                  initializer=self.kernel_initializer)
    self.bias = self.add_weight(name="bias", shape=(self.filters,), initializer="zeros")


class UpsampleConv2D(_FoldedConv2D):
  """`upsample`, then a 3x3 convolution with zero padding: `[n, h, w, i] -> [n, 2 h, 2 w, o]`.

  Computed as one transposed convolution of stride 2 with the mirrored 4x4 kernel. The initializer
  sees the fans of the 3x3 kernel.
  """

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    n, h, w, _ = keras.ops.shape(inputs)
    kernel = tf.reverse(fold(tf.convert_to_tensor(self.kernel)), axis=[0, 1])
    outputs = tf.nn.conv2d_transpose(inputs, tf.transpose(kernel, [0, 1, 3, 2]),
                                     [n, 2 * h, 2 * w, self.filters], strides=2)
    return tf.nn.bias_add(outputs, self.bias)

  def compute_output_shape(self, input_shape):
    n, h, w, _ = input_shape
    return n, h and 2 * h, w and 2 * w, self.filters


class ConvDownsample2D(_FoldedConv2D):
  """A 3x3 convolution with zero padding, then `downsample`: `[n, 2 h, 2 w, i] -> [n, h, w, o]`.

  Computed as one convolution of stride 2 with a quarter of the 4x4 kernel. Height and width must be
  even, because at an odd border the folded form would pad differently. The initializer sees the
  fans of the 3x3 kernel.

  Raises:
    ValueError: height or width is odd.
  """

  def build(self, input_shape):
    _, h, w, _ = input_shape
    if (h or 0) % 2 or (w or 0) % 2:
      raise ValueError(f"ConvDownsample2D halves height and width, but they are {h} and {w}")
    super().build(input_shape)

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    kernel = fold(tf.convert_to_tensor(self.kernel)) / 4
    return tf.nn.bias_add(tf.nn.conv2d(inputs, kernel, strides=2, padding="SAME"), self.bias)

  def compute_output_shape(self, input_shape):
    n, h, w, _ = input_shape
    return n, h and h // 2, w and w // 2, self.filters
