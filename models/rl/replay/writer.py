"""The writer of a replay: changes its variables in compiled code, between the calls of the step."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from models.rl.replay import sum_tree
from models.rl.replay.timesteps import END
from replicator import replicated


class ReplayWriter:
  """Writes timesteps into all copies of a replay. It has no state of its own.

  Args:
    contents: the replay's variables of observations, actions, rewards and flags.
    written, drawable, largest_priority: see `Replay`.
    priorities: a number for each place: its priority, or 0 where no transition can be sampled.
  """

  def __init__(self, contents: list[tf.Variable], written: tf.Variable, drawable: tf.Variable,
               largest_priority: tf.Variable, priorities: sum_tree.SumTree):
    self._contents = contents
    self._others = [written, drawable, largest_priority, *priorities.levels]
    self._compiled: Callable | None = None

  def write(self, *arrays: np.ndarray) -> None:
    """Writes timesteps, and makes transitions available for sampling.

    Args:
      arrays: first the places to write to, int64 [m]; then observations, actions, rewards and
        flags [m, ...]; then the places whose transitions become complete, int64 [k]; then the new
        value of `Replay.written`.
    """
    if self._compiled is None:
      # A concrete function: tf.function itself needs as long to inspect its arguments as this runs.
      index = tf.TensorSpec([None], tf.int64)
      self._compiled = tf.function(self._write, autograph=False).get_concrete_function(
          index, *(tf.TensorSpec([None, *v.shape[1:]], v.dtype) for v in self._contents), index,
          tf.TensorSpec(self._others[0].shape, tf.int64))
    self._compiled(*map(tf.constant, arrays))

  def _write(self, *arguments: tf.Tensor) -> None:
    replicated.update([*self._contents, *self._others], _write_copies, *arguments)


def _write_copies(copies: list[tf.Variable], index: tf.Tensor, *arguments: tf.Tensor) -> None:
  *parts, complete, total = arguments
  *contents, written, drawable, largest = copies[:7]
  levels = copies[7:]
  for variable, part in zip(contents, parts, strict=True):
    variable.scatter_update(tf.IndexedSlices(part, index))
  written.assign(total)
  lost = tf.math.count_nonzero(sum_tree.numbers_at(levels, index))
  is_transition = tf.not_equal(tf.gather(contents[-1], complete), END)
  drawable.assign_add(tf.math.count_nonzero(is_transition) - lost)
  # New timesteps get the priority 0, unless they are among the complete ones.
  numbers = tf.where(is_transition, largest, 0.0)
  sum_tree.assign(levels, tf.concat([index, complete], 0),
                  tf.concat([tf.zeros_like(index, tf.float32), numbers], 0))
