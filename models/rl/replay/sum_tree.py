"""A sum tree in variables: draws indices in proportion to numbers, inside a compiled step."""

import itertools
from collections.abc import Sequence

from replicator import replicated

import numpy as np
import tensorflow as tf

# Number of sums that a draw reads in each level. Smaller numbers are slower without XLA, and larger
# ones with it: for 256 draws from a million, 16 is best in both.
_FAN_OUT = 16
_BELOW_ONE = 1.0 - 2.0 ** -52


class SumTree(tf.Module):
  """Nonnegative numbers, initially 0, and their sums over blocks, blocks of blocks, and so on.

  A sum is recomputed when one of its numbers changes. It is never updated by a difference, so it
  does not drift, and depends only on the numbers.

  Args:
    size: number of numbers.

  Attributes:
    levels: variables. The first, float32 [ceil(size / 16), 16], holds the numbers. Each of the
      others, float64 [k, 16], holds the row sums of the previous level. The last has k = 1.
  """

  def __init__(self, size: int):
    super().__init__()
    self.levels = [_zeros(size, tf.float32)]
    while self.levels[-1].shape[0] > 1:
      self.levels.append(_zeros(self.levels[-1].shape[0], tf.float64))

  def draw(self, uniform: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws indices, int64 [n], with probabilities proportional to their numbers, float32 [n].

    `uniform`, float64 [n], is in [0, 1). An index whose number is 0 is never drawn. If all numbers
    are 0, the index is meaningless, and its number is 0.
    """
    index = tf.zeros_like(uniform, tf.int64)
    rest = None
    for level in reversed(self.levels):
      children = replicated.gather(level, index)  # [n, 16]
      numbers = tf.cast(children, tf.float64)
      # A child of 0 is never drawn, even if rounding makes its partial sums differ.
      ends = tf.where(numbers > 0, tf.matmul(numbers, _UP_TO_HERE), 0.0)
      total = tf.reduce_max(ends, 1)
      rest = uniform * total if rest is None else rest
      target = tf.minimum(rest, total * _BELOW_ONE)
      child = tf.argmax(ends > target[:, tf.newaxis], 1)
      is_before = tf.range(_FAN_OUT, dtype=tf.int64) < child[:, tf.newaxis]
      rest -= tf.reduce_sum(tf.where(is_before, numbers, 0.0), 1)
      index = index * _FAN_OUT + child
    return index, tf.gather(children, child, batch_dims=1)


def numbers_at(levels: Sequence[tf.Variable], index: tf.Tensor) -> tf.Tensor:
  """Returns numbers at some indices, int64 [n] -> float32 [n], in one copy of a tree's levels."""
  # XLA cannot gather_nd from a variable.
  return tf.gather(tf.gather(levels[0], index // _FAN_OUT), index % _FAN_OUT, batch_dims=1)


def assign(levels: Sequence[tf.Variable], index: tf.Tensor, numbers: tf.Tensor) -> None:
  """Changes some numbers in one copy of a tree's levels, and the sums above them.

  The numbers are float32 [n], at least 0, and the indices int64 [n]. If an index occurs twice, its
  largest number is used.
  """
  places = _places(index)
  # If an index occurs twice, the update keeps a number that depends on the device; scatter_max then
  # keeps the largest. XLA has no scatter_nd_max.
  levels[0].scatter_nd_update(places, numbers)
  in_rows = tf.one_hot(places[:, 1], _FAN_OUT) * numbers[:, tf.newaxis]
  levels[0].scatter_max(tf.IndexedSlices(in_rows, places[:, 0]))
  for below, level in itertools.pairwise(levels):
    index = index // _FAN_OUT
    sums = tf.reduce_sum(tf.cast(tf.gather(below, index), tf.float64), 1)
    level.scatter_nd_update(_places(index), sums)


_UP_TO_HERE = np.triu(np.ones([_FAN_OUT, _FAN_OUT]))


def _places(index: tf.Tensor) -> tf.Tensor:
  """Returns the rows and columns of some indices: int64 [n] -> int64 [n, 2]."""
  return tf.stack([index // _FAN_OUT, index % _FAN_OUT], 1)


def _zeros(size: int, dtype: tf.DType) -> tf.Variable:
  shape = [-(-size // _FAN_OUT), _FAN_OUT]
  return replicated.variable(lambda: tf.zeros(shape, dtype))
