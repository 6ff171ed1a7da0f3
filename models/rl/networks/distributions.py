"""Distributions of actions: draws from noise, probabilities and entropies.

A discrete action, one of k, is a vector `[k]` whose largest element is at its index. Several
choices are the concatenation of such vectors.
"""

import math
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

_LOWEST = -1e9  # Finite, so that 0 times it is 0; half precision holds less.


def draw(logits: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
  """Draws action i with probability `softmax(logits)_i`; with zero noise, the most probable one.

  It uses the Gumbel-max trick: the largest of `logits - log(-log u)`, where u is uniform. Here u is
  the normal distribution function of the noise, so it is the same for all actions if noise is 0.

  Logits and noise, which is N(0, 1) or zeros, are `[n, k]`. The result is one-hot, floatx `[n, k]`.
  """
  uniform = 0.5 * (1.0 + tf.math.erf(tf.cast(noise, tf.float64) / math.sqrt(2.0)))
  scores = tf.cast(logits, tf.float64) - tf.math.log(-tf.math.log(uniform))
  return tf.one_hot(tf.argmax(scores, 1), logits.shape[1], dtype=keras.config.floatx())


def chosen(values: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
  """Returns the values of the actions that were taken: `[n, k, ...], [n, k] -> [n, ...]`."""
  return tf.gather(values, tf.argmax(actions, 1), batch_dims=1)


def masked(logits: tf.Tensor, possible: tf.Tensor | None) -> tf.Tensor:
  """Sets logits or values of impossible actions to a very low number: `[n, k]`, bool `[n, k]`.

  They then have probability 0 and no gradient (Huang & Ontanon 2020, arXiv:2006.14171). None means
  that all actions are possible.
  """
  if possible is None:
    return logits
  lowest = max(_LOWEST, float(logits.dtype.min) / 2.0)  # A softmax subtracts the largest one.
  return tf.where(possible, logits, tf.constant(lowest, logits.dtype))


def epsilon_greedy(values: tf.Tensor, epsilon: tf.Tensor, possible: tf.Tensor | None = None
                   ) -> tf.Tensor:
  """Returns logits of an epsilon-greedy policy: `[n, k], [] -> float64 [n, k]`.

  `possible`, bool `[n, k]`, is a mask of possible actions; None for all.
  """
  k = values.shape[1]
  count = k if possible is None else tf.maximum(
      tf.reduce_sum(tf.cast(possible, tf.float64), 1, keepdims=True), 1.0)
  # Below 1, so that the best action is always the most probable one.
  share = tf.minimum(tf.cast(epsilon, tf.float64), 1.0 - 1e-6) / count
  best = tf.one_hot(tf.argmax(masked(values, possible), 1), k, dtype=tf.float64)
  return masked(tf.math.log(share + (1.0 - count * share) * best), possible)


def log_density(distance: tf.Tensor, log_deviation: tf.Tensor) -> tf.Tensor:
  """Returns the logarithm of the density of a normal distribution: `[..., a], [..., a] -> [...]`.

  `distance` is the distance from the mean, in standard deviations.
  """
  return tf.reduce_sum(-0.5 * tf.square(distance) - log_deviation - 0.5 * math.log(2.0 * math.pi),
                       -1)


def entropy(log_deviation: tf.Tensor) -> tf.Tensor:
  """Returns the differential entropy of a normal distribution in nats: `[..., a] -> [...]`."""
  return tf.reduce_sum(log_deviation + 0.5 * math.log(2.0 * math.pi * math.e), -1)


class Categorical:
  """Distributions of discrete actions, described by logits `[n, k]`.

  `choices` are the numbers of options of independent choices, one or more, whose sum is k.
  """

  trainable_variables: tuple[keras.Variable, ...] = ()

  def __init__(self, choices: Sequence[int]):
    self._choices = list(choices)

  def draw(self, logits: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    """Draws actions, see `draw`: `[n, k], [n, k] -> [n, k]`."""
    return tf.concat(self._each(draw, logits, noise), 1)

  def log_probability(self, logits: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """Returns the logarithm of the probability of actions: `[n, k], [n, k] -> [n]`."""
    of_one = lambda logits, actions: chosen(tf.nn.log_softmax(logits), actions)
    return tf.add_n(self._each(of_one, logits, actions))

  def entropy(self, logits: tf.Tensor) -> tf.Tensor:
    """Returns the entropy in nats: `[n, k] -> [n]`."""
    return tf.add_n(self._each(_entropy_of_one, logits))

  def _each(self, of_one: Callable[..., tf.Tensor], *vectors: tf.Tensor) -> list[tf.Tensor]:
    """Calls a function with each choice's parts of vectors `[n, k]`."""
    return [of_one(*parts) for parts in zip(
        *(tf.split(vector, self._choices, 1) for vector in vectors), strict=True)]


def _entropy_of_one(logits: tf.Tensor) -> tf.Tensor:
  log_probability = tf.nn.log_softmax(logits)
  return -tf.reduce_sum(tf.exp(log_probability) * log_probability, 1)


class Gaussian(tf.Module):
  """Normal distributions of actions, described by means `[n, a]`, with learned deviations.

  `log_deviation` [a] is initially 0; `size` is a.
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
    """Draws actions: `[n, a], [n, a] -> [n, a]`; noise ~ N(0, 1), or 0 for the means."""
    return mean + tf.exp(self.log_deviation.value) * tf.cast(noise, mean.dtype)

  def log_probability(self, mean: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """Returns the logarithm of the density at actions: `[n, a], [n, a] -> [n]`."""
    distance = (actions - mean) * tf.exp(-self.log_deviation.value)
    return log_density(distance, self.log_deviation.value)

  def entropy(self, mean: tf.Tensor) -> tf.Tensor:
    """Returns the differential entropy in nats: `[n, a] -> [n]`."""
    return entropy(tf.zeros_like(mean) + self.log_deviation.value)
