"""Self-attention between the positions of a feature map."""

from models.gan.networks.building import SameShape
from replicator import SpectralNorm, UsageError

import keras
import tensorflow as tf


class SelfAttention(SameShape):
  """Self-attention, `x + gain * attention(x)`: `[n, h, w, c] -> [n, h, w, c]`; h and w are even.

  Queries and keys have c / 8 channels, values c / 2. Keys and values are max-pooled 2x2, and a last
  convolution maps the result to c channels. The 1x1 convolutions are spectrally normalized and
  initially orthogonal, without bias. The gain is a scalar that starts at 0.

  Reference: Zhang et al. 2018 (arXiv:1805.08318), equations 1 to 3, with the pooling and the widths
  of Brock et al. 2018 (arXiv:1809.11096) and of both groups' public code.
  """

  def __init__(self):
    super().__init__(autocast=False)

  def build(self, input_shape):
    channels = input_shape[-1]
    eighth, half = max(channels // 8, 1), max(channels // 2, 1)
    self.query, self.key, self.value, self.out = map(_conv1, (eighth, eighth, half, channels))
    for layer in (self.query, self.key, self.value):
      layer.build(input_shape)
    self.out.build((*input_shape[:-1], half))
    self.gain = self.add_weight(name="gain", shape=(), initializer="zeros", autocast=False)

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    queries = _positions(self.query(inputs))
    keys, values = (_positions(tf.nn.max_pool2d(layer(inputs), 2, 2, "VALID"))
                    for layer in (self.key, self.value))
    logits = tf.cast(tf.matmul(queries, keys, transpose_b=True), self.variable_dtype)
    answers = tf.matmul(tf.cast(tf.nn.softmax(logits), values.dtype), values)
    _, h, w, _ = inputs.shape
    answers = self.out(tf.reshape(answers, [-1, h, w, answers.shape[-1]]))
    return inputs + tf.cast(self.gain, answers.dtype) * answers


def with_attention(network: str, attention: int | None, blocks: list[keras.Layer],
                   sizes: list[int], last: bool = False) -> list[keras.Layer]:
  """Inserts self-attention after the first (or last) block whose output map has a given size.

  `attention` is that size in pixels: 0 for none, and None for 64 pixels if there is such a map.
  `sizes` are the map sizes after each block.

  Raises:
    UsageError: no map has that size; the message names the network.
  """
  if attention and attention not in sizes:
    known = ", ".join(map(str, sorted(set(sizes))))
    raise UsageError(f"{network}.attention = {attention!r}: the feature maps after its blocks have "
                     f"{known} pixels; use one of these, or 0 for no self-attention")
  places = [i + 1 for i, size in enumerate(sizes)
            if size == (64 if attention is None else attention)]
  if not places:
    return blocks
  place = places[-1 if last else 0]
  return [*blocks[:place], SelfAttention(), *blocks[place:]]


def _conv1(filters: int) -> SpectralNorm:
  return SpectralNorm(keras.layers.Conv2D(filters, 1, use_bias=False,
                                          kernel_initializer="orthogonal"))


def _positions(x: tf.Tensor) -> tf.Tensor:
  """Flattens positions: `[n, h, w, c] -> [n, h w, c]`."""
  _, h, w, c = x.shape
  return tf.reshape(x, [-1, h * w, c])
