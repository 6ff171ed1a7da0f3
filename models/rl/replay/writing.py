"""Writes timesteps into the variables of a replay, in compiled code."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from models.rl.replay import sum_tree
from models.rl.replay.timesteps import END
from replicator import replicated

import tensorflow as tf

if TYPE_CHECKING:
  from models.rl.replay.replay import Replay


def writer_of(replay: "Replay") -> Callable[..., None]:
  """Returns a function that writes timesteps into all copies of a replay, in compiled code.

  It takes arrays: the rows to write to, int64 [m]; observations, actions, rewards and flags
  [m, ...]; the rows that can no longer be sampled, int64 [m]; those whose transitions become
  complete, int64 [k]; and the new value of `written`.
  """
  contents = [replay.observation, replay.action, replay.reward, replay.flag]
  variables = [*contents, replay.written, replay.drawable, replay.largest_priority,
               *replay.priorities.levels]

  @functools.cache
  def compiled() -> Callable:
    # A concrete function, because tf.function takes as long to inspect arguments as this runs.
    index = tf.TensorSpec([None], tf.int64)
    write = lambda *arguments: replicated.update(variables, _write_copies, *arguments)
    return tf.function(write, autograph=False).get_concrete_function(
        index, *(tf.TensorSpec([None, *v.shape[1:]], v.dtype) for v in contents), index, index,
        tf.TensorSpec(replay.written.shape, tf.int64))
  return lambda *arrays: compiled()(*map(tf.constant, arrays))


def _write_copies(copies: list[tf.Variable], index: tf.Tensor, *arguments: tf.Tensor) -> None:
  *parts, gone, complete, total = arguments
  *contents, written, drawable, largest = copies[:7]
  levels = copies[7:]
  for variable, part in zip(contents, parts, strict=True):
    variable.scatter_update(tf.IndexedSlices(part, index))
  written.assign(total)
  lost = tf.math.count_nonzero(sum_tree.numbers_at(levels, gone))
  is_transition = tf.not_equal(tf.gather(contents[-1], complete), END)
  drawable.assign_add(tf.math.count_nonzero(is_transition) - lost)
  # Rows that can no longer be sampled get priority 0, unless they are also complete.
  numbers = tf.where(is_transition, largest, 0.0)
  sum_tree.assign(levels, tf.concat([gone, complete], 0),
                  tf.concat([tf.zeros_like(gone, tf.float32), numbers], 0))
