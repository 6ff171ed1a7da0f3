"""Priorities of a replay: updates from errors, and importance weights that correct for them."""

import replicator
from models.rl.replay import sum_tree

import tensorflow as tf

_LEAST_ERROR = 1e-6  # Added to every error, so that a transition without error is sampled again.


def weights(priority: tf.Tensor, exponent: float) -> tf.Tensor:
  """Returns importance weights [n]: `(N P)^-b / max (N P)^-b`, where N cancels."""
  least = replicator.all_min(tf.reduce_min(priority))
  return (least / priority) ** exponent


def change(copies: list[tf.Variable], index: tf.Tensor, errors: tf.Tensor, exponent: float) -> None:
  """Updates the priorities of sampled transitions, in one copy of a replay.

  `copies` has the largest priority, then the levels of the sum tree. Priorities do not change if
  they are 0 or the error is not finite.
  """
  largest, *levels = copies
  old = sum_tree.numbers_at(levels, index)
  # In float64, XLA's and TensorFlow's powers differ at most in a bit that float32 drops.
  new = (tf.abs(tf.cast(errors, tf.float64)) + _LEAST_ERROR) ** exponent
  new = tf.cast(new, tf.float32)
  new = tf.where((old > 0) & tf.math.is_finite(new), new, old)
  largest.assign(tf.maximum(largest, tf.reduce_max(new)))
  sum_tree.assign(levels, index, new)
