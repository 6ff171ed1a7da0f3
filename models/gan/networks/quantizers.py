"""Quantizers, which replace each vector of a map by one of a finite number of codes.

The gradient of the codes passes to the vectors as it is (the straight-through estimator). Means
over the examples, which a quantizer learns from, are a step's to combine: those of all replicas
and micro-batches together are `update`d with.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from replicator import ExamplePool, UsageError, random
from replicator.errors import at_least_one
from replicator.step import replicated

import gin
import keras
import numpy as np
import tensorflow as tf


class Quantized(NamedTuple):
  """A map of vectors and what became of it."""

  codes: tf.Tensor  # `[n, h, w, dim]`, that of each vector, with the straight-through gradient.
  indices: tf.Tensor  # int32 `[n, h, w]`, the numbers of the codes.
  loss: tf.Tensor  # [], what pulls the vectors to their codes; 0 if nothing does.
  # Means over all vectors, by name; `usage` [num_codes] has the share of each code.
  means: dict[str, tf.Tensor]


class Quantizer(Protocol):
  """The interface of a quantizer for `experiments.vqgan`."""

  dim: int  # The number of channels of the maps that it takes.
  num_codes: int  # The number of different codes.

  def __call__(self, vectors: tf.Tensor, training: bool = False) -> Quantized:
    """Quantizes a map `[n, h, w, dim]`; in training it may remember vectors of each example."""
    ...

  def update(self, means: dict[str, tf.Tensor]) -> None:
    """Learns from `Quantized.means`, the mean of those of all replicas."""
    ...


@gin.configurable
class FSQ:
  """Finite scalar quantization: rounds each channel to a few levels (arXiv:2309.15505).

  Mentzer et al. 2023, section 3.1 and the authors' code. A channel of L levels is bounded by a tanh
  and rounded to whole numbers, which are divided by L // 2. Nothing is learned: there is neither a
  loss nor a codebook, and no collective.

  Args:
    levels: the number of levels of each channel.

  Raises:
    UsageError: there is no channel, or one has fewer than 2 levels.
  """

  def __init__(self, levels: Sequence[int] = (8, 6, 5)):
    if not levels or min(levels) < 2:
      raise UsageError(f"FSQ.levels = {tuple(levels)!r}: write the number of levels of each "
                       "channel, at least 2, such as (8, 6, 5)")
    self.dim, self.num_codes = len(levels), math.prod(levels)
    self._half = np.array(levels) // 2
    self._scale = (np.array(levels) - 1) * (1 - 1e-3) / 2
    self._offset = np.where(np.array(levels) % 2, 0.0, 0.5)
    self._places = np.cumprod([1, *levels[:-1]])

  def __call__(self, vectors: tf.Tensor, training: bool = False) -> Quantized:
    """Rounds each channel of `[n, h, w, dim]`; channel 0 is the lowest digit of an index."""
    half, scale, offset, shift = (tf.constant(x, vectors.dtype) for x in (
        self._half, self._scale, self._offset, np.tan(self._offset / self._scale)))
    bounded = tf.tanh(vectors + shift) * scale - offset
    rounded = tf.round(bounded)
    indices = tf.reduce_sum(tf.cast(rounded + half, tf.int32) * self._places, -1)
    return Quantized(_straight_through(bounded, rounded) / half, indices,
                     tf.zeros([], vectors.dtype),
                     {"usage": tf.reduce_mean(_one_hot(indices, self.num_codes, vectors.dtype), 0)})

  def update(self, means: dict[str, tf.Tensor]) -> None:
    """Learns nothing."""


@gin.configurable
class Codebook(tf.Module):
  """The nearest of learned codes, which are moving averages of the vectors that they replaced.

  Van den Oord et al. 2017 (arXiv:1711.00937), appendix A.1. Code k is `sums[k] / shares[k]`, where
  a step moves the averages

      shares[k] = decay shares[k] + (1 - decay) (share of the vectors whose nearest code is k)
      sums[k] = decay sums[k] + (1 - decay) (sum of these vectors / number of all vectors)

  over the examples of all replicas. A code with a share below `restart_below / num_codes` is dead:
  it becomes a vector that an example of a recent batch had at a random place (as in Dhariwal et
  al. 2020, arXiv:2005.00341, section 3.1), and its share that bound. So do the random codes of a
  new codebook. Which vector that is does not depend on the number of replicas: the place is drawn
  for the example, and `ExamplePool` keeps the examples in the order of the global batch.

  Args:
    num_codes: the number of codes.
    dim: the number of channels of a code.
    decay: the share of the averages that a step keeps.
    commitment: the weight of the loss, the mean square of the vectors minus their codes, which are
      constants in it.
    restart_below: the part of its fair share below which a code is dead; 0 restarts none.

  Attributes:
    shares: [num_codes].
    sums: [num_codes, dim].
    pool: the vectors that dead codes become; place k is for code k.

  Raises:
    UsageError: a number is below 1, or the decay or `restart_below` is outside [0, 1).
  """

  def __init__(self, num_codes: int = 256, dim: int = 32, decay: float = 0.99,
               commitment: float = 0.25, restart_below: float = 0.1):
    super().__init__()
    at_least_one("Codebook", num_codes=num_codes, dim=dim)
    for name, value in ("decay", decay), ("restart_below", restart_below):
      if not 0 <= value < 1:
        raise UsageError(f"Codebook.{name} = {value}: write a number from 0 to below 1")
    self.num_codes, self.dim, self.decay, self.commitment = num_codes, dim, decay, commitment
    self.lowest = restart_below / num_codes
    share = self.lowest or 1 / num_codes  # A new code that is not used is dead at once.
    dtype = keras.config.floatx()
    codes = keras.initializers.RandomNormal(stddev=1.0)([num_codes, dim], dtype)
    self.shares = replicated.variable(np.full([num_codes], share), dtype, "shares")
    self.sums = replicated.variable(share * codes, dtype, "sums")
    self.pool = ExamplePool(num_codes, [dim], stream="restarts") if restart_below else None

  @property
  def codes(self) -> tf.Tensor:
    """The codes, `[num_codes, dim]`."""
    # A share may fall to 0 if dead codes are not restarted.
    return tf.math.divide_no_nan(tf.identity(self.sums), self.shares[:, tf.newaxis])

  def __call__(self, vectors: tf.Tensor, training: bool = False) -> Quantized:
    """The nearest codes of `[n, h, w, dim]`; in training a vector of each example is kept."""
    flat, codes = tf.reshape(vectors, [-1, self.dim]), tf.stop_gradient(self.codes)
    distances = tf.reduce_sum(tf.square(codes), 1) - 2 * tf.matmul(flat, codes, transpose_b=True)
    nearest = tf.argmin(distances, 1, tf.int32)
    is_nearest = _one_hot(nearest, self.num_codes, vectors.dtype)
    chosen = tf.reshape(tf.matmul(is_nearest, codes), tf.shape(vectors))
    if training and self.pool:
      n, h, w, _ = vectors.shape
      places = random.uniform("restarts", [n], 0, h * w, "int64")
      self.pool.append(tf.gather(tf.reshape(vectors, [n, h * w, -1]), places, batch_dims=1))
    sums = tf.matmul(is_nearest, tf.stop_gradient(flat), transpose_a=True)
    return Quantized(
        _straight_through(vectors, chosen), tf.reshape(nearest, tf.shape(vectors)[:-1]),
        self.commitment * tf.reduce_mean(tf.math.squared_difference(vectors, chosen)),
        {"usage": tf.reduce_mean(is_nearest, 0),
         "sums": sums / tf.cast(tf.shape(flat)[0], vectors.dtype)})

  def update(self, means: dict[str, tf.Tensor]) -> None:
    """Moves the codes, and restarts those that are dead."""
    shares, sums = (self.decay * average + (1 - self.decay) * mean for average, mean in (
        (self.shares, means["usage"]), (self.sums, means["sums"])))
    if self.pool:
      vectors, is_filled = self.pool.past()
      is_dead = is_filled & (shares < self.lowest)
      shares = tf.where(is_dead, tf.constant(self.lowest, shares.dtype), shares)
      sums = tf.where(is_dead[:, tf.newaxis], self.lowest * vectors, sums)
    replicated.update([self.shares, self.sums], _assign, shares, sums)


def perplexity(usage: tf.Tensor) -> tf.Tensor:
  """The number [] of equally frequent codes with the entropy of these shares, `[num_codes]`."""
  return tf.exp(-tf.reduce_sum(tf.math.xlogy(usage, usage)))


def _assign(copies: list[tf.Variable], *values: tf.Tensor) -> None:
  for copy, value in zip(copies, values, strict=True):
    copy.assign(value)


def _straight_through(vectors: tf.Tensor, codes: tf.Tensor) -> tf.Tensor:
  return vectors + tf.stop_gradient(codes - vectors)


def _one_hot(indices: tf.Tensor, count: int, dtype: tf.DType) -> tf.Tensor:
  """Rows of a 1 among zeros: int32 `[...]` -> `[number of indices, count]`."""
  return tf.one_hot(tf.reshape(indices, [-1]), count, dtype=dtype)
