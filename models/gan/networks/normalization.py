"""Batch normalization conditioned on a class or a vector, and layer normalization."""

from models.gan.networks.building import SameShape, class_weights
from replicator import GlobalBatchNorm, SpectralNorm

import keras
import tensorflow as tf


class ClassBatchNorm(SameShape):
  """Conditional batch normalization (Dumoulin et al. 2017, arXiv:1610.07629, equation 5).

  Normalizes over all examples of all replicas, then scales and shifts each example by its class:
  `[n, h, w, c], [n] -> [n, h, w, c]`. Labels are as in `class_weights`. The layer learns
  `gamma [num_classes, c]`, initially ones, and `beta [num_classes, c]`, initially zeros.
  """

  def __init__(self, num_classes: int, **kwargs):
    super().__init__(**kwargs)
    self.num_classes = num_classes
    self.norm = GlobalBatchNorm(center=False, scale=False)

  def build(self, input_shape):
    self.norm.build(input_shape)
    shape = (self.num_classes, input_shape[-1])
    self.gamma = self.add_weight(name="gamma", shape=shape, initializer="ones")
    self.beta = self.add_weight(name="beta", shape=shape, initializer="zeros")

  def call(self, inputs: tf.Tensor, labels: tf.Tensor, training: bool = False) -> tf.Tensor:
    rows = class_weights(labels, self.num_classes, self.compute_dtype, type(self).__name__)
    gamma, beta = tf.matmul(rows, self.gamma), tf.matmul(rows, self.beta)
    outputs = self.norm(inputs, training=training)
    return outputs * gamma[:, tf.newaxis, tf.newaxis] + beta[:, tf.newaxis, tf.newaxis]


class ConditionalBatchNorm(SameShape):
  """Batch normalization conditioned on a vector (Brock et al. 2018, arXiv:1809.11096).

  Normalizes over all examples of all replicas, then scales each example by `1 + W condition` and
  shifts it by `V condition`: `[n, h, w, c], [n, d] -> [n, h, w, c]`. W and V are spectrally
  normalized and initially orthogonal, without bias.
  """

  def __init__(self, condition_dim: int, **kwargs):
    super().__init__(autocast=False, **kwargs)
    self.condition_dim = condition_dim
    self.norm = GlobalBatchNorm(center=False, scale=False)

  def build(self, input_shape):
    self.norm.build(input_shape)
    self.gain, self.offset = (
        SpectralNorm(keras.layers.Dense(input_shape[-1], use_bias=False,
                                        kernel_initializer="orthogonal"))
        for _ in range(2))
    for layer in (self.gain, self.offset):
      layer.build((None, self.condition_dim))

  def call(self, inputs: tf.Tensor, condition: tf.Tensor, training: bool = False) -> tf.Tensor:
    gain, offset = 1.0 + self.gain(condition), self.offset(condition)
    outputs = self.norm(inputs, training=training)
    return outputs * gain[:, tf.newaxis, tf.newaxis] + offset[:, tf.newaxis, tf.newaxis]


class LayerNorm(SameShape):
  """Layer normalization (Ba et al. 2016, arXiv:1607.06450): `[n, ..., c] -> [n, ..., c]`.

  Normalizes each example over all its axes, then scales and shifts each channel. Gulrajani et al.
  2017 (arXiv:1704.00028), section 4, recommend it for critics with a gradient penalty.

  Its second derivatives are exact. Those of `keras.layers.LayerNormalization` are not: it calls
  `tf.nn.moments`, which differentiates the variance as if the mean were constant. That keeps the
  first derivative correct, but not the second.
  """

  def __init__(self, epsilon: float = 1e-5, **kwargs):
    super().__init__(autocast=False, **kwargs)
    self.epsilon = epsilon

  def build(self, input_shape):
    shape = (input_shape[-1],)
    self.gamma = self.add_weight(name="gamma", shape=shape, initializer="ones")
    self.beta = self.add_weight(name="beta", shape=shape, initializer="zeros")

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    x = tf.cast(inputs, self.variable_dtype)
    axes = list(range(1, x.shape.rank))
    centered = x - tf.reduce_mean(x, axes, keepdims=True)
    variance = tf.reduce_mean(tf.square(centered), axes, keepdims=True)
    normalized = centered * tf.math.rsqrt(variance + self.epsilon)
    return tf.cast(normalized * self.gamma + self.beta, self.compute_dtype)
