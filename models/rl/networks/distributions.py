"""Distributions of actions: draws from noise, their probabilities, and their entropies.

A discrete action, one of k, is a vector `[k]` whose largest number is at its place.
"""

import math

import keras
import tensorflow as tf


def draw(logits: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
  """Draws action i with probability `softmax(logits)_i`; without noise, the most probable one.

  By Gumbel's trick: the largest of `logits - log(-log u)`, where u is uniform. Here u is the
  distribution function of the noise, and so the same for all actions if there is none.

  Logits and noise, which is N(0, 1) or zeros, are `[n, k]`. The result has 1 at the place of the
  action, else 0, floatx `[n, k]`.
  """
  uniform = 0.5 * (1.0 + tf.math.erf(tf.cast(noise, tf.float64) / math.sqrt(2.0)))
  scores = tf.cast(logits, tf.float64) - tf.math.log(-tf.math.log(uniform))
  return tf.one_hot(tf.argmax(scores, 1), logits.shape[1], dtype=keras.config.floatx())


def chosen(values: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
  """The values of the actions that were taken: `[n, k, ...], [n, k] -> [n, ...]`."""
  return tf.gather(values, tf.argmax(actions, 1), batch_dims=1)


def epsilon_greedy(values: tf.Tensor, epsilon: tf.Tensor) -> tf.Tensor:
  """Logits of the best action, or with probability epsilon any: `[n, k], [] -> float64 [n, k]`."""
  k = values.shape[1]
  # Below 1, so that the best action is always the most probable one.
  share = tf.minimum(tf.cast(epsilon, tf.float64), 1.0 - 1e-6) / k
  best = tf.one_hot(tf.argmax(values, 1), k, dtype=tf.float64)
  return tf.math.log(share + (1.0 - k * share) * best)


def log_density(distance: tf.Tensor, log_deviation: tf.Tensor) -> tf.Tensor:
  """The logarithm of the density of a normal distribution: `[..., a], [..., a] -> [...]`.

  `distance` is that from the mean, in standard deviations.
  """
  return tf.reduce_sum(-0.5 * tf.square(distance) - log_deviation - 0.5 * math.log(2.0 * math.pi),
                       -1)


def entropy(log_deviation: tf.Tensor) -> tf.Tensor:
  """The differential entropy of a normal distribution in nats: `[..., a] -> [...]`."""
  return tf.reduce_sum(log_deviation + 0.5 * math.log(2.0 * math.pi * math.e), -1)


class Categorical:
  """Distributions of discrete actions, described by logits `[n, k]`."""

  trainable_variables: tuple[keras.Variable, ...] = ()
  draw = staticmethod(draw)

  def log_probability(self, logits: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """The logarithm of the probability of actions: `[n, k], [n, k] -> [n]`."""
    return chosen(tf.nn.log_softmax(logits), actions)

  def entropy(self, logits: tf.Tensor) -> tf.Tensor:
    """In nats: `[n, k] -> [n]`."""
    log_probability = tf.nn.log_softmax(logits)
    return -tf.reduce_sum(tf.exp(log_probability) * log_probability, 1)


class Gaussian(tf.Module):
  """Normal distributions of actions, described by means `[n, a]`, with deviations that are learned.

  `log_deviation` has their logarithms, initially 0, `[a]`; `size` is a.
  """

  def __init__(self, size: int):
    super().__init__()
    self.log_deviation = keras.Variable(tf.zeros([size]), name="log_deviation",
                                        dtype=keras.config.floatx())

  @property
  def trainable_variables(self) -> tuple[keras.Variable, ...]:
    """The variable that an optimizer updates."""
    return (self.log_deviation,)

  def draw(self, mean: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    """Draws actions: `[n, a], [n, a] -> [n, a]`; noise ~ N(0, 1), without noise the means."""
    return mean + tf.exp(self.log_deviation.value) * tf.cast(noise, mean.dtype)

  def log_probability(self, mean: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """The logarithm of the density at actions: `[n, a], [n, a] -> [n]`."""
    distance = (actions - mean) * tf.exp(-self.log_deviation.value)
    return log_density(distance, self.log_deviation.value)

  def entropy(self, mean: tf.Tensor) -> tf.Tensor:
    """The differential entropy in nats: `[n, a] -> [n]`."""
    return entropy(tf.zeros_like(mean) + self.log_deviation.value)
