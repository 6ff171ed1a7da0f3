"""The layers between a network and a self-supervised loss."""

from collections.abc import Sequence

from replicator import GlobalBatchNorm

import keras
import tensorflow as tf


def projector(inputs: int, hidden: Sequence[int], outputs: int, prototypes: int = 0
              ) -> keras.Sequential:
  """Makes an MLP with global batch norms: `[n, inputs] -> [n, outputs]`.

  With prototypes, they are its last layer: `[n, inputs] -> [n, prototypes]`. The last layers
  compute in float32 (float64 under its policy), even if the others have a lower precision.
  """
  layers: list[keras.layers.Layer] = []
  for units in hidden:
    layers += [keras.layers.Dense(units, use_bias=False), GlobalBatchNorm(), keras.layers.ReLU()]
  layers.append(keras.layers.Dense(outputs, dtype=keras.config.floatx()))
  if prototypes:
    layers.append(Prototypes(prototypes))
  return keras.Sequential([keras.Input([inputs]), *layers])


class Prototypes(keras.layers.Layer):
  """A layer of cosine similarities to learned directions: `[n, d] -> [n, count]`.

  It is the last layer of DINO (Caron et al. 2021, arXiv:2104.14294, appendix C), with normalized
  weights and no scale.
  """

  def __init__(self, count: int):
    super().__init__(dtype=keras.config.floatx())
    self.count = count

  def build(self, input_shape):
    self.kernel = self.add_weight(name="kernel", shape=(input_shape[-1], self.count))

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    kernel = tf.convert_to_tensor(self.kernel)
    return tf.matmul(tf.math.l2_normalize(inputs, 1), tf.math.l2_normalize(kernel, 0))
