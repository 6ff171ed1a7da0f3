"""Quantizers, which replace each vector of a map with one of a finite number of codes.

The gradient of the codes is passed to the vectors unchanged (the straight-through estimator). A
quantizer learns from means over examples. The step averages them over all replicas and
micro-batches, and passes them to `update`.
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
  """A quantized map of vectors."""

  codes: tf.Tensor  # `[n, h, w, dim]`, each vector's code, with the straight-through gradient.
  indices: tf.Tensor  # int32 `[n, h, w]`, the indices of the codes.
  loss: tf.Tensor  # [], pulls the vectors to their codes; 0 if there is none.
  # Means over all vectors, by name; `usage` [num_codes] has the frequency of each code.
  means: dict[str, tf.Tensor]


class Quantizer(Protocol):
  """The interface of a quantizer for `experiments.vqgan`."""

  dim: int  # The number of channels of its input maps.
  num_codes: int  # The number of different codes.

  def __call__(self, vectors: tf.Tensor, training: bool = False) -> Quantized:
    """Quantizes a map `[n, h, w, dim]`; may store vectors of each example during training."""
    ...

  def update(self, means: dict[str, tf.Tensor]) -> None:
    """Learns from `Quantized.means`, averaged over all replicas."""
    ...


@gin.configurable
class FSQ:
  """Finite scalar quantization: rounds each channel to a few levels (arXiv:2309.15505).

  Mentzer et al. 2023, section 3.1 and the authors' code. A channel of L levels is bounded by a tanh
  and rounded to whole numbers, which are divided by L // 2. It has nothing to learn, so it needs no
  loss, codebook or collective.

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
    """Does nothing, because there is nothing to learn."""


@gin.configurable
class Codebook(tf.Module):
  """A codebook whose codes are moving averages of the vectors assigned to them.

  Van den Oord et al. 2017 (arXiv:1711.00937), appendix A.1. Code k is `sums[k] / shares[k]`, where
  each step updates the averages

      shares[k] = decay shares[k] + (1 - decay) (fraction of vectors whose nearest code is k)
      sums[k] = decay sums[k] + (1 - decay) (sum of these vectors / number of all vectors)

  over the examples of all replicas. A code with a share below `restart_below / num_codes` is dead.
  It is replaced by a vector from a random position of a recent example (as in Dhariwal et al. 2020,
  arXiv:2005.00341, section 3.1), and its share is set to that bound. The random codes of a new
  codebook are replaced in the same way. The vector does not depend on the number of replicas: its
  position is drawn per example, and `ExamplePool` keeps the global batch's order.

  Args:
    num_codes: the number of codes.
    dim: the number of channels of a code.
    decay: the decay of the moving averages.
    commitment: the weight of the loss, the mean squared distance of the vectors from their codes,
      which are constants in it.
    restart_below: codes used less than this fraction of uniform usage are dead; 0 restarts none.

  Attributes:
    shares: [num_codes].
    sums: [num_codes, dim].
    pool: the vectors that replace dead codes; entry k is for code k.

  Raises:
    UsageError: a number is below 1, or the decay or `restart_below` is outside [0, 1).
  """

  def __init__(self, num_codes: int = 256, dim: int = 32, decay: float = 0.99,
               commitment: float = 0.25, restart_below: float = 0.1):
    super().__init__()
    at_least_one("Codebook", num_codes=num_codes, dim=dim)
    for name, value in ("decay", decay), ("restart_below", restart_below):
      if not 0 <= value < 1:
        raise UsageError(f"Codebook.{name} = {value}: must be at least 0 and below 1")
    self.num_codes, self.dim, self.decay, self.commitment = num_codes, dim, decay, commitment
    self.lowest = restart_below / num_codes
    share = self.lowest or 1 / num_codes  # An unused new code is dead immediately.
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
    """Finds the nearest codes of `[n, h, w, dim]`; in training, keeps a vector of each example."""
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
    """Updates the codes, and restarts dead ones."""
    shares, sums = (self.decay * average + (1 - self.decay) * mean for average, mean in (
        (self.shares, means["usage"]), (self.sums, means["sums"])))
    if self.pool:
      vectors, is_filled = self.pool.past()
      is_dead = is_filled & (shares < self.lowest)
      shares = tf.where(is_dead, tf.constant(self.lowest, shares.dtype), shares)
      sums = tf.where(is_dead[:, tf.newaxis], self.lowest * vectors, sums)
    replicated.update([self.shares, self.sums], _assign, shares, sums)


def perplexity(usage: tf.Tensor) -> tf.Tensor:
  """Returns the perplexity [] of code frequencies `[num_codes]`: exp of their entropy."""
  return tf.exp(-tf.reduce_sum(tf.math.xlogy(usage, usage)))


def _assign(copies: list[tf.Variable], *values: tf.Tensor) -> None:
  for copy, value in zip(copies, values, strict=True):
    copy.assign(value)


def _straight_through(vectors: tf.Tensor, codes: tf.Tensor) -> tf.Tensor:
  return vectors + tf.stop_gradient(codes - vectors)


def _one_hot(indices: tf.Tensor, count: int, dtype: tf.DType) -> tf.Tensor:
  """Returns one-hot rows: int32 `[...]` -> `[number of indices, count]`."""
  return tf.one_hot(tf.reshape(indices, [-1]), count, dtype=dtype)
