"""Noisy layers, which explore with random weights; the agent learns their noise scales."""

import itertools
import math
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf


class NoisyMLP(keras.layers.Layer):
  """Dense layers with factorized Gaussian noise on their weights (Fortunato et al. 2018).

      y = x W + b + (x f(e_in)) S * f(e_out) + s * f(e_out),    f(e) = sign(e) sqrt|e|

  Initially S and s are `sigma / sqrt(inputs)`. All layers but the last have the activation. Each
  example has independent noise, so replicas need not share any; in the paper a batch has one draw.
  Reference: arXiv:1706.10295, sections 3 and 3.2.

  Attributes:
    noise_size: length of the noise of an example; known once built.
  """

  def __init__(self, sizes: Sequence[int], sigma: float, activation: Callable):
    super().__init__()
    self.sizes, self.sigma, self.hidden_activation = list(sizes), sigma, activation

  def build(self, input_shape: Sequence[int], noise_shape: Sequence[int] = ()) -> None:
    """Makes the weights."""
    self.shapes = list(itertools.pairwise([input_shape[-1], *self.sizes]))
    self.noise_size = sum(map(sum, self.shapes))
    self.layers = []  # W, S, b and s of each.
    for inputs, units in self.shapes:
      limit = 1.0 / math.sqrt(inputs)
      self.layers.append([
          self.add_weight(shape=shape, initializer=initializer)
          for shape in ([inputs, units], [units])
          for initializer in (keras.initializers.RandomUniform(-limit, limit),
                              keras.initializers.Constant(self.sigma * limit))])

  def call(self, x: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    """Returns outputs: `[n, inputs], [n, noise_size] -> [n, sizes[-1]]`; noise ~ N(0, 1), or 0."""
    factors = tf.sign(noise) * tf.sqrt(tf.abs(noise))
    parts = iter(tf.split(factors, list(itertools.chain(*self.shapes)), 1))
    for i, (kernel, kernel_noise, bias, bias_noise) in enumerate(self.layers):
      of_inputs, of_outputs = next(parts), next(parts)
      x = self.hidden_activation(x) if i else x
      x = tf.matmul(x, kernel) + bias + of_outputs * (
          tf.matmul(x * of_inputs, kernel_noise) + bias_noise)
    return x
