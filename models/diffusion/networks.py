"""Denoising networks, which map noisy examples and noise levels to outputs of the same shape.

`network(x, level)` takes examples `[n, *shape]` and numbers [n] that grow with the examples' noise.
`models.diffusion.edm.Denoiser` scales its inputs and outputs. `features`, with the same arguments,
returns the inputs of the last layer, `[n, num_features]`.
"""

from collections.abc import Sequence

from models.gan.networks.building import build_chain, call_chain
from replicator.errors import at_least_one

import gin
import keras
import numpy as np
import tensorflow as tf

_FREQUENCIES = [2.0 ** (i / 2) for i in range(10)]


class NoiseLevel(keras.layers.Layer):
  """An embedding of noise levels by cosines, sines and two layers: `[n] -> [n, units]`."""

  def __init__(self, units: int):
    super().__init__(autocast=False)
    self.mix = [keras.layers.Dense(units, "silu", kernel_initializer="he_normal")
                for _ in range(2)]
    build_chain(self.mix, (None, 2 * len(_FREQUENCIES)))
    self.built = True

  def call(self, level: tf.Tensor) -> tf.Tensor:
    angles = level[:, tf.newaxis] * tf.constant([_FREQUENCIES], level.dtype)
    return call_chain(self.mix, tf.concat([tf.cos(angles), tf.sin(angles)], 1))


@gin.configurable(denylist=["shape"])
class DenoisingMLP(keras.Model):
  """A network of residual dense layers, for points in the plane or images of a few pixels.

  Each layer is h + W silu(h + v), where all layers share v, an embedding of the level.

  Args:
    shape: shape of an example.
    units: length of h.
    layers: number of layers between the first and the last.

  Raises:
    UsageError: a number is below 1.
  """

  def __init__(self, shape: Sequence[int], units: int = 128, layers: int = 3):
    super().__init__(autocast=False)
    at_least_one("DenoisingMLP", units=units, layers=layers)
    self.num_features = units
    self.level = NoiseLevel(units)
    # He initialization, because Glorot's would be too small for a point's two numbers.
    self.first = keras.layers.Dense(units, kernel_initializer="he_normal")
    self.hidden = [keras.layers.Dense(units) for _ in range(layers)]
    self.last = keras.layers.Dense(int(np.prod(shape)))
    build_chain([self.first, *self.hidden, self.last], (None, int(np.prod(shape))))
    self.built = True

  def call(self, x: tf.Tensor, level: tf.Tensor) -> tf.Tensor:
    outputs = self.last(self.features(x, level))
    return tf.reshape(tf.cast(outputs, self.variable_dtype), [-1, *x.shape[1:]])

  def features(self, x: tf.Tensor, level: tf.Tensor) -> tf.Tensor:
    """Returns the inputs of the last layer: `[n, units]`."""
    h, v = self.first(tf.reshape(x, [-1, int(np.prod(x.shape[1:]))])), self.level(level)
    for layer in self.hidden:
      h += layer(tf.nn.silu(h + v))
    return tf.nn.silu(h)
