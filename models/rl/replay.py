"""A replay of transitions that lives in variables, and is sampled inside the compiled step.

It keeps what a stream of experience is: rows, each one moment, in a ring for each stream. A
transition is not stored but found when it is drawn: its next observation is in a later row, and its
return is added up from the rows between.
"""

from collections.abc import Callable
from typing import NamedTuple

import gin
import keras
import numpy as np
import tensorflow as tf

import replicator
from models.rl import sum_tree
from models.rl.rows import CONTINUES as CONTINUES
from models.rl.rows import END as END
from models.rl.rows import TERMINATED as TERMINATED
from models.rl.rows import Rows as Rows
from models.rl.rows import checked, numbered
from replicator import UsageError
from replicator.step import replicated
from replicator.step.replicated import copies_of

_LEAST_ERROR = 1e-6  # Added to every error: a row whose error is 0 must still be drawn again.


class Transitions(NamedTuple):
  """n transitions over m <= n_step steps of an environment; tensors, floating ones of the floatx.

  Attributes:
    observation: [n, *shape].
    action: [n, a].
    reward: [n], the m rewards, each discounted: `sum_k discount^k r_k`.
    discount: [n], `discount^m`, the factor on what is expected of `next_observation`; 0 if the
      episode terminated there.
    next_observation: [n, *shape], m steps after `observation`.
    weight: [n], importance weights, of which the largest of the global batch is 1.
    index: int64 [n], for `Replay.update_priorities`.
  """

  observation: tf.Tensor
  action: tf.Tensor
  reward: tf.Tensor
  discount: tf.Tensor
  next_observation: tf.Tensor
  weight: tf.Tensor
  index: tf.Tensor


@gin.configurable(denylist=["observation_shape", "action_size", "streams", "observation_dtype"])
class Replay(tf.Module):
  """The newest rows of each stream; made in the constructor of a step.

  Every replica has a copy, and gets every row. A row can be drawn when `n_step` later ones of
  its stream are there.

  Args:
    observation_shape: of one observation.
    action_size: numbers of an action.
    streams: how many environments write into it.
    observation_dtype: 'float32' or 'uint8', of what is kept.
    capacity: how many rows it keeps at least, all streams together.
    n_step: over how many steps a transition goes, where its episode is that long.
    discount: factor on the reward for each step that it comes later.
    priority_exponent: 0 draws uniformly. Otherwise a transition is drawn with a probability in
      proportion to its last error to this power (prioritised replay, Schaul et al. 2016).
    importance_exponent: of the weights that correct for it: 1 corrects in full, 0 not at all.

  Attributes:
    rows: how many rows each stream keeps.
    prioritised: whether `update_priorities` does anything.
    written: int64 [streams], how many rows each stream ever got.
    drawable: int64 [], how many transitions can be drawn.
    largest_priority: float32 [], the largest one ever; new rows get it.

  Raises:
    UsageError: a setting cannot work.
  """

  def __init__(self, observation_shape: tuple[int, ...], action_size: int, streams: int, *,
               observation_dtype: str = "float32", capacity: int = 1_000_000, n_step: int = 5,
               discount: float = 0.99, priority_exponent: float = 0.0,
               importance_exponent: float = 0.4):
    super().__init__()
    self.rows = -(-capacity // streams)
    _check_settings(observation_dtype, capacity, self.rows, n_step, discount, priority_exponent,
                    importance_exponent)
    self._format = streams, tuple(observation_shape), observation_dtype, action_size
    self.prioritised = priority_exponent > 0
    self._n_step, self._discount = n_step, discount
    self._priority_exponent, self._importance_exponent = priority_exponent, importance_exponent
    total = streams * self.rows
    self.written = _variable([streams], tf.int64)
    self.observation = _variable([total, *observation_shape], tf.as_dtype(observation_dtype))
    self.action = _variable([total, action_size], tf.float32)
    self.reward = _variable([total], tf.float32)
    self.flag = _variable([total], tf.int32)  # Of uint8 TensorFlow makes none in two processes.
    self.priorities = sum_tree.SumTree(total)
    self.largest_priority = _variable([], tf.float32, 1)
    self.drawable = _variable([], tf.int64)
    self._writer = _Writer(self)

  def size(self) -> int:
    """How many transitions can be drawn now."""
    return int(copies_of(self.drawable)[0])

  # ---- Writing, on the host, between calls of the step ------------------------------------------

  def insert(self, rows: Rows) -> None:
    """Appends rows to their streams; the oldest ones are overwritten.

    Raises:
      UsageError: a shape, dtype or stream is not that of the replay, or a number is not finite.
    """
    rows = checked(rows, *self._format)
    number, written = numbered(rows.stream, copies_of(self.written)[0].numpy())
    kept = number >= written[rows.stream] - self.rows  # Of more rows than it holds, the newest.
    rows, number = Rows(*(part[kept] for part in rows)), number[kept]
    first = rows.stream * np.int64(self.rows)
    # With each row one gets the last row that its transition needs.
    ready = number - self._n_step
    is_there = (ready >= 0) & (ready >= written[rows.stream] - self.rows)
    self._writer.write(first + number % self.rows, *rows[1:],
                       (first + ready % self.rows)[is_there], written)

  # ---- Reading, in a step -----------------------------------------------------------------------

  def sample(self, n: int) -> Transitions:
    """Draws this replica's n of the global batch's transitions, each independently of the others.

    An empty replay gives rewards of NaN: a compiled step cannot raise an error.

    Raises:
      UsageError: it is empty, and the step runs eagerly.
    """
    if tf.executing_eagerly() and not self.size():
      raise UsageError("Replay.sample: no transition can be drawn yet; insert more than n_step = "
                       f"{self._n_step} rows of a stream before")
    uniform = replicator.random.uniform("replay", [n], dtype="float64")
    index, priority = self.priorities.draw(uniform)
    floatx = keras.config.floatx()
    reward, discount, last = self._window(index)
    return Transitions(
        observation=tf.cast(tf.gather(self.observation, index), floatx),
        action=tf.cast(tf.gather(self.action, index), floatx),
        reward=tf.where(priority > 0, reward, np.nan),
        discount=discount,
        next_observation=tf.cast(tf.gather(self.observation, last), floatx),
        weight=self._weights(tf.cast(priority, floatx)), index=index)

  def scalars(self) -> dict[str, tf.Tensor]:
    """How it is used, for a step to log: floating [].

    How many transitions can be drawn, how often each row was on average, and, if they have
    priorities, the largest one ever.
    """
    global_batch = replicator.batch_size() * replicator.num_replicas()
    drawn = global_batch * (replicator.step_number() + 1)
    found = {"replay_size": self.drawable,
             "samples_per_insert": drawn / tf.reduce_sum(self.written)}
    if self.prioritised:
      found["largest_priority"] = self.largest_priority
    return {name: tf.cast(value, keras.config.floatx()) for name, value in found.items()}

  def _window(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The return, the discount after it, and the row after it, of transitions from rows [n]."""
    floatx = keras.config.floatx()
    k = tf.range(self._n_step, dtype=tf.int64)
    rows = self._later(index[:, tf.newaxis], k)  # [n, n_step]
    flag = tf.gather(self.flag, rows)
    is_last = tf.equal(flag[:, :-1], TERMINATED) | tf.equal(flag[:, 1:], END)
    steps = tf.reduce_min(tf.where(is_last, 1 + k[:-1], self._n_step), 1)
    steps = tf.minimum(steps, self._n_step)  # Of no column at all the least is no number.
    is_inside = k < steps[:, tf.newaxis]
    powers = tf.constant(self._discount ** np.arange(self._n_step + 1), floatx)
    rewards = tf.cast(tf.gather(self.reward, rows), floatx)
    is_terminated = tf.reduce_any(is_inside & tf.equal(flag, TERMINATED), 1)
    return (tf.reduce_sum(tf.where(is_inside, rewards * powers[:-1], 0), 1),
            tf.where(is_terminated, tf.zeros([], floatx), tf.gather(powers, steps)),
            self._later(index, steps))

  def _later(self, index: tf.Tensor, steps: tf.Tensor) -> tf.Tensor:
    """The rows so many steps after others of the same streams."""
    position = index % self.rows
    return index - position + (position + steps) % self.rows

  def _weights(self, priority: tf.Tensor) -> tf.Tensor:
    """Importance weights [n]. The number of transitions falls out of `(N P)^-b / max (N P)^-b`."""
    if not self.prioritised:
      return tf.ones_like(priority)
    least = replicator.all_min(tf.reduce_min(priority))
    return (least / priority) ** self._importance_exponent

  def update_priorities(self, transitions: Transitions, errors: tf.Tensor) -> None:
    """Gives the transitions of a sample the priorities of their errors; uniformly drawn, nothing.

    What was overwritten since keeps the priority 0, and what has an error that is not finite keeps
    its own.

    Args:
      transitions: of this replica, from `sample`.
      errors: [n], of either sign.
    """
    if not self.prioritised:
      return
    index, errors = replicator.all_concat(
        [transitions.index, tf.cast(tf.stop_gradient(errors), tf.float32)])
    replicated.update([self.largest_priority, *self.priorities.levels], self._prioritise, index,
                      errors)

  def _prioritise(self, copies: list[tf.Variable], index: tf.Tensor, errors: tf.Tensor) -> None:
    largest, *levels = copies
    old = sum_tree.numbers_at(levels, index)
    new = (tf.abs(errors) + _LEAST_ERROR) ** self._priority_exponent
    new = tf.where((old > 0) & tf.math.is_finite(new), new, old)
    largest.assign(tf.maximum(largest, tf.reduce_max(new)))
    sum_tree.assign(levels, index, new)


class _Writer:
  """Writes rows into all copies of a replay, compiled once; no tf.Module, it holds no state."""

  def __init__(self, replay: Replay):
    self._contents = [replay.observation, replay.action, replay.reward, replay.flag]
    self._others = [replay.written, replay.drawable, replay.largest_priority,
                    *replay.priorities.levels]
    self._compiled: Callable | None = None

  def write(self, *arrays: np.ndarray) -> None:
    """Writes to int64 [m] places the four contents [m, ...]; int64 [k] places are ready then.

    The last of the arrays is the new value of `Replay.written`.
    """
    if self._compiled is None:
      # Not the tf.function itself, which takes as long for looking at its arguments as this runs.
      index = tf.TensorSpec([None], tf.int64)
      self._compiled = tf.function(self._write, autograph=False).get_concrete_function(
          index, *(tf.TensorSpec([None, *v.shape[1:]], v.dtype) for v in self._contents), index,
          tf.TensorSpec(self._others[0].shape, tf.int64))
    self._compiled(*map(tf.constant, arrays))

  def _write(self, index: tf.Tensor, *arguments: tf.Tensor) -> None:
    *parts, ready, total = arguments
    for copies in zip(*map(copies_of, [*self._contents, *self._others]), strict=True):
      *contents, written, drawable, largest = copies[:7]
      levels = copies[7:]
      for variable, part in zip(contents, parts, strict=True):
        variable.scatter_update(tf.IndexedSlices(part, index))
      written.assign(total)
      lost = tf.math.count_nonzero(sum_tree.numbers_at(levels, index))
      is_transition = tf.not_equal(tf.gather(contents[-1], ready), END)
      drawable.assign_add(tf.math.count_nonzero(is_transition) - lost)
      # What is written cannot be drawn yet; some of it may be ready at once.
      numbers = tf.where(is_transition, largest, 0.0)
      sum_tree.assign(levels, tf.concat([index, ready], 0),
                      tf.concat([tf.zeros_like(index, tf.float32), numbers], 0))


def _variable(shape: list[int], dtype: tf.DType, value: int = 0) -> tf.Variable:
  try:
    return tf.Variable(lambda: tf.fill(shape, tf.constant(value, dtype)), trainable=False,
                       aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
  except tf.errors.InvalidArgumentError as error:
    if dtype != tf.uint8:
      raise
    raise UsageError("Replay: TensorFlow keeps no observations of uint8 in several processes; "
                     "write Replicator.strategy = 'mirrored', or observe no pixels") from error


def _check_settings(observation_dtype: str, capacity: int, rows: int, n_step: int, discount: float,
                    priority_exponent: float, importance_exponent: float) -> None:
  if observation_dtype not in ("float32", "uint8"):
    raise UsageError(f"Replay: observations of {observation_dtype}; make them float32 or uint8")
  if n_step < 1:
    raise UsageError(f"Replay.n_step = {n_step}: must be at least 1")
  if rows <= n_step:
    raise UsageError(f"Replay.capacity = {capacity}: leaves each stream {rows} rows, of which "
                     f"none could be drawn with n_step = {n_step}; write more")
  for name, value in (("discount", discount), ("priority_exponent", priority_exponent),
                      ("importance_exponent", importance_exponent)):
    if not 0 <= value <= 1:
      raise UsageError(f"Replay.{name} = {value}: must be from 0 to 1")
