"""A replay of transitions that lives in variables, and is sampled inside the compiled step.

It stores streams of experience: timesteps, in a ring buffer for each stream. A transition is not
stored but assembled when it is sampled: its next observation is in a later timestep, and its return
is the sum of the rewards in between. Neither is a stack of the last observations: each is stored
once, and those before it are looked up.
"""

from collections.abc import Callable
from typing import NamedTuple

import replicator
from models.rl.replay import sum_tree, writing
from models.rl.replay.timesteps import END, TERMINATED, Timesteps, checked, numbered
from replicator import UsageError, replicated
from replicator.errors import above_zero, at_least_one, from_0_to_1, no_class

import gin
import keras
import numpy as np
import tensorflow as tf

_IMPORTANCE_EXPONENT = 0.4
_LEAST_ERROR = 1e-6  # Added to every error, so that a transition without error is sampled again.


class Transitions(NamedTuple):
  """n transitions, each over m <= n_step steps of an environment. Floating tensors are floatx.

  The discount is 0 if the episode terminated at the next observation.
  """

  observation: tf.Tensor  # [n, *shape]
  action: tf.Tensor  # [n, a]
  reward: tf.Tensor  # [n], the discounted sum of the m rewards: sum_k discount^k r_k.
  discount: tf.Tensor  # [n], discount^m, the factor on the value of `next_observation`.
  next_observation: tf.Tensor  # [n, *shape], m steps after `observation`.
  weight: tf.Tensor  # [n], importance weights; the largest one of the global batch is 1.
  index: tf.Tensor  # int64 [n], for `Replay.update_priorities`.


@gin.configurable(denylist=["observation_shape", "action_size", "streams", "observation_dtype",
                            "stack"])
class Replay(tf.Module):
  """The newest timesteps of each stream. Make it in the constructor of a step.

  Every replica has a copy, and receives every timestep. A timestep can be sampled as the start of a
  transition when its stream has `n_step` later ones.

  Args:
    observation_shape: shape of one observation.
    action_size: length of an action.
    streams: how many environments write into it.
    observation_dtype: 'float32' or 'uint8', the dtype of stored observations.
    stack: how many observations of the environment an observation of the agent consists of, see
      `Environments.stack`. Only the newest one is stored. The oldest `stack - 1` timesteps of a
      full stream cannot be sampled, because what was before them is gone.
    capacity: how many timesteps it stores at least, over all streams.
    n_step: the length of a transition, if its episode is that long.
    discount: factor on a reward for each step that it comes later.
    priority_exponent: 0 samples uniformly. A larger value samples a transition with a probability
      in proportion to its last error to this power (prioritized replay, Schaul et al. 2016).
    importance_exponent: exponent of the weights that correct for priorities: 1 corrects in full, 0
      not at all.
    reward_limit: rewards are clipped to `[-reward_limit, reward_limit]` when they are stored; None
      leaves them as they are. Those that are logged and evaluated are never clipped.
    augment: changes sampled observations, floatx `[n, *shape] -> [n, *shape]`, such as
      `@RandomShift()`; None leaves them as they are.

  Attributes:
    stream_capacity: how many timesteps it stores of each stream.
    prioritized: whether `update_priorities` has an effect.
    written: int64 [streams], how many timesteps each stream has received so far.
    drawable: int64 [], how many transitions can be sampled.
    drawn: int64 [], how many samples were drawn so far, by all replicas.
    samples_per_insert: floatx [], `drawn` per timestep received, at the last draw.
    largest_priority: float32 [], the largest priority so far; new transitions receive it.
    n_step: int64 [], the length of the transitions in it.

  Raises:
    UsageError: a setting cannot work.
  """

  def __init__(self, observation_shape: tuple[int, ...], action_size: int, streams: int, *,
               observation_dtype: str = "float32", stack: int = 1, capacity: int = 1_000_000,
               n_step: int = 5, discount: float = 0.99, priority_exponent: float = 0.0,
               importance_exponent: float = _IMPORTANCE_EXPONENT,
               reward_limit: float | None = None,
               augment: Callable[[tf.Tensor], tf.Tensor] | None = None):
    super().__init__()
    self.stream_capacity = -(-capacity // streams)
    if observation_dtype not in ("float32", "uint8"):
      raise UsageError(f"Replay: observations of {observation_dtype}; make them float32 or uint8")
    at_least_one("Replay", n_step=n_step)
    no_class("Replay", augment=augment)
    if reward_limit is not None:
      above_zero("Replay", reward_limit=reward_limit)
    if self.stream_capacity < n_step + stack:
      raise UsageError(f"Replay.capacity = {capacity}: leaves each stream {self.stream_capacity} "
                       f"timesteps, too few for a transition of n_step = {n_step}"
                       f"{f' and a stack of {stack}' if stack > 1 else ''}; write more")
    from_0_to_1("Replay", discount=discount, priority_exponent=priority_exponent,
                importance_exponent=importance_exponent)
    if not priority_exponent and importance_exponent not in (0, _IMPORTANCE_EXPONENT):
      raise UsageError(f"Replay.importance_exponent = {importance_exponent}: corrects for "
                       "priorities, and there are none; write Replay.priority_exponent = 0.6, too")
    self._format = streams, tuple(observation_shape), observation_dtype, action_size
    self.prioritized = priority_exponent > 0
    self._stack, self._n_step, self._discount = stack, n_step, discount
    self._reward_limit, self._augment = reward_limit, augment
    self._priority_exponent, self._importance_exponent = priority_exponent, importance_exponent
    total = streams * self.stream_capacity
    self.written = _variable([streams], tf.int64)
    *others, channels = observation_shape
    self.observation = _variable([total, *others, channels // stack],
                                 tf.as_dtype(observation_dtype))
    self.action = _variable([total, action_size], tf.float32)
    self.reward = _variable([total], tf.float32)
    # TensorFlow has no uint8 variables in two processes, and no int32 variables on GPUs.
    # An episode begins after an END, and the first one of a stream after places without timesteps.
    self.flag = _variable([total], tf.int64, END)
    self.priorities = sum_tree.SumTree(total)
    self.largest_priority = _variable([], tf.float32, 1)
    self.n_step = _variable([], tf.int64, n_step)  # That of the transitions in it.
    self.drawable, self.drawn = _variable([], tf.int64), _variable([], tf.int64)
    self.samples_per_insert = _variable([], keras.config.floatx())
    self._write = writing.writer_of(self)

  def size(self) -> int:
    """The number of transitions that can be sampled now."""
    return int(replicated.read(self.drawable))

  # ---- Writing, on the host, between calls of the step ------------------------------------------

  def insert(self, timesteps: Timesteps) -> None:
    """Appends timesteps to their streams, in place of the oldest ones.

    Raises:
      UsageError: a shape, dtype or stream does not fit the replay, or a number is not finite.
    """
    if (stored := int(replicated.read(self.n_step))) != self._n_step:
      raise UsageError(f"Replay.n_step = {self._n_step}: the run's replay has transitions of "
                       f"{stored}; write {stored}, or another --workdir")
    timesteps = checked(timesteps, *self._format)
    timesteps = timesteps._replace(
        observation=timesteps.observation[..., -self.observation.shape[-1]:])
    if self._reward_limit is not None:
      np.clip(timesteps.reward, -self._reward_limit, self._reward_limit, out=timesteps.reward)
    capacity, stream = self.stream_capacity, timesteps.stream
    number, written = numbered(stream, replicated.read(self.written))
    kept = number >= written[stream] - capacity  # Only the newest fit.
    timesteps, number = Timesteps(*(part[kept] for part in timesteps)), number[kept]
    stream = timesteps.stream
    first = stream * np.int64(capacity)
    # Each new timestep completes the transition that began n_step before it.
    complete = number - self._n_step
    older = self._stack - 1
    is_stored = (complete >= 0) & (complete >= written[stream] - capacity + older)
    # Each also overwrites what the stack of a later one reaches back to.
    self._write(first + number % capacity, *timesteps[1:], first + (number + older) % capacity,
                (first + complete % capacity)[is_stored], written)

  # ---- Sampling, in a step ----------------------------------------------------------------------

  def sample(self, n: int) -> Transitions:
    """Samples this replica's n transitions of the global batch, each independently.

    Samples of an empty replay have rewards of NaN, because a compiled step cannot raise an error.

    Raises:
      UsageError: the replay is empty, and the step runs eagerly.
    """
    if tf.executing_eagerly() and not self.size():
      raise UsageError("Replay.sample: there is no transition yet; insert more than n_step = "
                       f"{self._n_step} timesteps of a stream before")
    index, priority = self.draw(n)
    floatx = keras.config.floatx()
    reward, discount, last = self._window(index)
    return Transitions(
        observation=self._observed(index),
        action=tf.cast(replicated.gather(self.action, index), floatx),
        reward=tf.where(priority > 0, reward, np.nan),
        discount=discount,
        next_observation=self._observed(last),
        weight=self._weights(tf.cast(priority, floatx)), index=index)

  def draw(self, n: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Places of this replica's n samples, int64 [n], and their priorities, float32 [n]."""
    counted = [self.drawn, self.samples_per_insert, self.written]
    replicated.update(counted, _count, tf.constant(n * replicator.num_replicas(), tf.int64))
    return self.priorities.draw(replicator.random.uniform("replay", [n], dtype="float64"))

  def scalars(self) -> dict[str, tf.Tensor]:
    """Variables for a step to log, [].

    `replay_size`, the number of transitions; `samples_per_insert`, how often a timestep was sampled
    on average; and `largest_priority`, if there are priorities.
    """
    found = {"replay_size": self.drawable, "samples_per_insert": self.samples_per_insert}
    return {**found, **({"largest_priority": self.largest_priority} if self.prioritized else {})}

  def _window(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return, discount and place of the last timestep, of transitions that begin at places [n]."""
    floatx = keras.config.floatx()
    k = tf.range(self._n_step, dtype=tf.int64)
    places = self.later(index[:, tf.newaxis], k)  # [n, n_step]
    flag = replicated.gather(self.flag, places)
    is_last = tf.equal(flag[:, :-1], TERMINATED) | tf.equal(flag[:, 1:], END)
    steps = tf.reduce_min(tf.where(is_last, 1 + k[:-1], self._n_step), 1)
    steps = tf.minimum(steps, self._n_step)  # With n_step = 1 the minimum is over no column.
    is_inside = k < steps[:, tf.newaxis]
    powers = tf.constant(self._discount ** np.arange(self._n_step + 1), floatx)
    rewards = tf.cast(replicated.gather(self.reward, places), floatx)
    is_terminated = tf.reduce_any(is_inside & tf.equal(flag, TERMINATED), 1)
    return (tf.reduce_sum(tf.where(is_inside, rewards * powers[:-1], 0), 1),
            tf.where(is_terminated, tf.zeros([], floatx), tf.gather(powers, steps)),
            self.later(index, steps))

  def _observed(self, index: tf.Tensor) -> tf.Tensor:
    """Observations at places [n], with their stacks: floatx `[n, *shape]`."""
    places = [index]
    for _ in range(self._stack - 1):
      before = self.later(places[0], -1)
      is_first = tf.equal(replicated.gather(self.flag, before), END)
      places.insert(0, tf.where(is_first, places[0], before))
    stack = tf.concat([replicated.gather(self.observation, place) for place in places], -1)
    stack = tf.cast(stack, keras.config.floatx())
    return self._augment(stack) if self._augment else stack

  def later(self, index: tf.Tensor, steps: tf.Tensor | int) -> tf.Tensor:
    """Places in the same streams, a number of steps later: int64 of shapes that broadcast."""
    position = index % self.stream_capacity
    return index - position + (position + steps) % self.stream_capacity

  def _weights(self, priority: tf.Tensor) -> tf.Tensor:
    """Importance weights [n]: `(N P)^-b / max (N P)^-b`, in which N cancels."""
    if not self.prioritized:
      return tf.ones_like(priority)
    least = replicator.all_min(tf.reduce_min(priority))
    return (least / priority) ** self._importance_exponent

  def update_priorities(self, transitions: Transitions, errors: tf.Tensor) -> None:
    """Sets the priorities of sampled transitions by their errors, if priority_exponent is above 0.

    A transition that was overwritten since keeps the priority 0. One whose error is not finite
    keeps its priority.

    Args:
      transitions: from `sample`, on this replica.
      errors: [n], of either sign.

    Raises:
      UsageError: the errors have another shape.
    """
    if len(errors.shape) != 1:
      raise UsageError(f"Replay.update_priorities: the errors are {list(errors.shape)}; give one "
                       "for each transition, [n]")
    if not self.prioritized:
      return
    index, errors = replicator.all_concat(
        [transitions.index, tf.cast(tf.stop_gradient(errors), tf.float32)])
    replicated.update([self.largest_priority, *self.priorities.levels], self._prioritize, index,
                      errors)

  def _prioritize(self, copies: list[tf.Variable], index: tf.Tensor, errors: tf.Tensor) -> None:
    largest, *levels = copies
    old = sum_tree.numbers_at(levels, index)
    # In float64, where XLA's powers round as TensorFlow's do, but for a bit that float32 drops.
    new = (tf.abs(tf.cast(errors, tf.float64)) + _LEAST_ERROR) ** self._priority_exponent
    new = tf.cast(new, tf.float32)
    new = tf.where((old > 0) & tf.math.is_finite(new), new, old)
    largest.assign(tf.maximum(largest, tf.reduce_max(new)))
    sum_tree.assign(levels, index, new)


def _count(copies: list[tf.Variable], n: tf.Tensor) -> None:
  drawn, ratio, written = copies
  drawn.assign_add(n)
  ratio.assign(tf.cast(drawn / tf.reduce_sum(written), ratio.dtype))


def _variable(shape: list[int], dtype: tf.DType, value: int = 0) -> tf.Variable:
  try:
    return replicated.variable(lambda: tf.fill(shape, tf.constant(value, dtype)))
  except tf.errors.InvalidArgumentError as error:
    if dtype != tf.uint8:
      raise
    raise UsageError("Replay: TensorFlow cannot store observations of uint8 in several processes; "
                     "write Replicator.strategy = 'mirrored', or observe no pixels") from error
