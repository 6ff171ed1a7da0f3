"""The writer of a replay: changes its variables in compiled code, between the calls of the step."""

import functools
from collections.abc import Callable

import tensorflow as tf

from models.rl.replay import sum_tree
from models.rl.replay.timesteps import END
from replicator import replicated


def writer_of(contents: list[tf.Variable], written: tf.Variable, drawable: tf.Variable,
              largest_priority: tf.Variable, priorities: sum_tree.SumTree) -> Callable[..., None]:
  """A function that writes timesteps into all copies of a replay, for sampling.

  Args:
    contents: the replay's variables of observations, actions, rewards and flags.
    written, drawable, largest_priority: see `Replay`.
    priorities: a number for each place: its priority, or 0 where no transition can be sampled.

  Returns:
    A function of arrays: the places to write to, int64 [m]; observations, actions, rewards and
    flags [m, ...]; the places whose transitions become complete, int64 [k]; and the new value of
    `Replay.written`.
  """
  variables = [*contents, written, drawable, largest_priority, *priorities.levels]

  @functools.cache
  def compiled() -> Callable:
    # A concrete function: tf.function itself needs as long to inspect its arguments as this runs.
    index = tf.TensorSpec([None], tf.int64)
    write = lambda *arguments: replicated.update(variables, _write_copies, *arguments)
    return tf.function(write, autograph=False).get_concrete_function(
        index, *(tf.TensorSpec([None, *v.shape[1:]], v.dtype) for v in contents), index,
        tf.TensorSpec(written.shape, tf.int64))
  return lambda *arrays: compiled()(*map(tf.constant, arrays))


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
