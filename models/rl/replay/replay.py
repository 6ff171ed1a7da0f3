"""A replay of transitions that is stored in variables, and sampled inside the compiled step.

It stores streams of timesteps, each in a ring buffer. Transitions are assembled when sampled: the
next observation is in a later timestep, and the return is the sum of the rewards in between.
Stacked observations are also assembled: each observation is stored once, and the previous ones are
looked up.
"""

from collections.abc import Callable
from typing import NamedTuple

import replicator
from models.rl.replay import priorities, sum_tree, writing
from models.rl.replay.hindsight import Hindsight, Places
from models.rl.replay.timesteps import END, TERMINATED, Timesteps, checked, numbered
from replicator import UsageError, replicated
from replicator.errors import above_zero, at_least_one, from_0_to_1

import gin
import keras
import numpy as np
import tensorflow as tf

_IMPORTANCE_EXPONENT = 0.4


class Transitions(NamedTuple):
  """n transitions, each over m <= n_step steps of an environment. Floating tensors are floatx.

  Observations stored in float64 remain float64. The discount is 0 if the episode terminated at the
  next observation.
  """

  observation: tf.Tensor  # [n, *shape]
  action: tf.Tensor  # [n, a]
  reward: tf.Tensor  # [n], the discounted sum of the m rewards: sum_k discount^k r_k.
  discount: tf.Tensor  # [n], discount^m, the factor on the value of `next_observation`.
  next_observation: tf.Tensor  # [n, *shape], m steps after `observation`.
  weight: tf.Tensor  # [n], importance weights; the largest in the global batch is 1.
  index: tf.Tensor  # int64 [n], for `Replay.update_priorities`.


@gin.configurable(denylist=["observation_shape", "action_size", "streams", "observation_dtype",
                            "stack", "goals", "max_episode_steps"])
class Replay(tf.Module):
  """The newest timesteps of each stream. Create it in the constructor of a step.

  Every replica has a copy with all timesteps. A timestep can be sampled as the start of a
  transition once its stream has `n_step` later ones.

  Args:
    observation_shape: shape of one observation.
    action_size: length of an action.
    streams: number of environments that write into it.
    observation_dtype: 'float32', 'float64' or 'uint8', the dtype of stored observations.
    stack: number of the environment's observations in an observation of the agent, see
      `Environments.stack`. Only the newest is stored. The oldest `stack - 1` timesteps of a full
      stream cannot be sampled, because their previous observations are gone.
    goals: the location of goals in an observation, see `hindsight.Places`; None without goals.
    max_episode_steps: the length of the longest episode. Only `hindsight` uses it.
    capacity: minimum number of timesteps stored, over all streams.
    n_step: the length of a transition, if its episode is that long.
    discount: discount factor per step.
    priority_exponent: 0 samples uniformly. A larger value samples a transition with a probability
      proportional to its last error to this power (prioritized replay, Schaul et al. 2016).
    importance_exponent: exponent of the weights that correct for priorities, from 0 (no correction)
      to 1 (full correction).
    reward_limit: rewards are clipped to `[-reward_limit, reward_limit]` when stored; None does not
      clip. Logged and evaluated rewards are never clipped.
    augment: augments sampled observations, floatx `[n, *shape] -> [n, *shape]`, such as
      `@RandomShift()`; or None.
    hindsight: makes the relabeling of sampled goals, `@Hindsight`; or None.

  Attributes:
    stream_capacity: number of timesteps stored per stream.
    prioritized: whether `update_priorities` has an effect.
    is_updated: whether this process has called it, or traced a step that does.
    written: int64 [streams], number of timesteps received by each stream so far.
    drawable: int64 [], number of transitions that can be sampled.
    drawn: int64 [], number of samples drawn so far by all replicas.
    samples_per_insert: floatx [], `drawn` per received timestep, at the last draw.
    largest_priority: float32 [], the largest priority so far, which new transitions get.
    n_step: int64 [], the length of the stored transitions.
    reward: float32 [rows], the stored rewards; 0 for empty rows.
    discount: the discount factor.

  Raises:
    UsageError: a setting is invalid.
  """

  def __init__(self, observation_shape: tuple[int, ...], action_size: int, streams: int, *,
               observation_dtype: str = "float32", stack: int = 1, goals: Places | None = None,
               max_episode_steps: int = 1000, capacity: int = 1_000_000,
               n_step: int = 5, discount: float = 0.99, priority_exponent: float = 0.0,
               importance_exponent: float = _IMPORTANCE_EXPONENT,
               reward_limit: float | None = None,
               augment: Callable[[tf.Tensor], tf.Tensor] | None = None,
               hindsight: Callable[..., Hindsight] | None = None):
    super().__init__()
    self.stream_capacity = -(-capacity // streams)
    if observation_dtype not in ("float32", "float64", "uint8"):
      raise UsageError(f"Replay: observations of {observation_dtype}; make them float32, float64 "
                       "or uint8")
    at_least_one("Replay", n_step=n_step)
    if reward_limit is not None:
      above_zero("Replay", reward_limit=reward_limit)
    if self.stream_capacity < n_step + stack:
      raise UsageError(f"Replay.capacity = {capacity}: leaves each stream {self.stream_capacity} "
                       f"timesteps, too few for a transition of n_step = {n_step}"
                       f"{f' and a stack of {stack}' if stack > 1 else ''}; use more")
    from_0_to_1("Replay", discount=discount, priority_exponent=priority_exponent,
                importance_exponent=importance_exponent)
    if not priority_exponent and importance_exponent not in (0, _IMPORTANCE_EXPONENT):
      raise UsageError(f"Replay.importance_exponent = {importance_exponent}: corrects for "
                       "priorities, but replay is uniform; also set Replay.priority_exponent = 0.6")
    self._format = streams, tuple(observation_shape), observation_dtype, action_size
    self.prioritized, self.is_updated = priority_exponent > 0, False
    self._stack, self._n_step, self.discount = stack, n_step, discount
    self._reward_limit, self._augment = reward_limit, augment
    self._priority_exponent, self._importance_exponent = priority_exponent, importance_exponent
    if hindsight and goals is None:
      raise UsageError("Replay.hindsight: the environment's observations must be a Dict with an "
                       "'achieved_goal' and a 'desired_goal' of equal length, and not stacked")
    self._hindsight = hindsight(self, goals, max_episode_steps) if hindsight else None
    total = streams * self.stream_capacity
    self.written = _variable([streams], tf.int64)
    *others, channels = observation_shape
    self.observation = _variable([total, *others, channels // stack],
                                 tf.as_dtype(observation_dtype))
    self.action = _variable([total, action_size], tf.float32)
    self.reward = _variable([total], tf.float32)
    # TensorFlow has no uint8 variables in two processes, and no int32 variables on GPUs.
    # Episodes begin after an END, so empty rows are ENDs, too.
    self.flag = _variable([total], tf.int64, END)
    self.priorities = sum_tree.SumTree(total)
    self.largest_priority = _variable([], tf.float32, 1)
    self.n_step = _variable([], tf.int64, n_step)  # That of the transitions in it.
    self.drawable, self.drawn = _variable([], tf.int64), _variable([], tf.int64)
    self.samples_per_insert = _variable([], keras.config.floatx())
    self._write = writing.writer_of(self)

  def restored_together(self) -> list[tf.Module]:
    """See `replicator.step.variables.together_in`."""
    return [self]

  def size(self) -> int:
    """Returns the number of transitions that can be sampled now."""
    return int(replicated.read(self.drawable))

  # ---- Writing, on the host, between calls of the step ------------------------------------------

  def insert(self, timesteps: Timesteps) -> None:
    """Appends timesteps to their streams, replacing the oldest ones.

    Raises:
      UsageError: a shape, dtype or stream does not fit the replay, or a number is not finite.
    """
    if (stored := int(replicated.read(self.n_step))) != self._n_step:
      raise UsageError(f"Replay.n_step = {self._n_step}: the run's replay has transitions of "
                       f"n_step = {stored}; use {stored}, or a different --workdir")
    timesteps = checked(timesteps, *self._format)
    timesteps = timesteps._replace(
        observation=timesteps.observation[..., -self.observation.shape[-1]:])
    if self._hindsight:
      self._hindsight.check(timesteps)
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
    # Each also overwrites an observation in the stack of a later timestep.
    self._write(first + number % capacity, *timesteps[1:], first + (number + older) % capacity,
                (first + complete % capacity)[is_stored], written)

  # ---- Sampling, in a step ----------------------------------------------------------------------

  def sample(self, n: int) -> Transitions:
    """Samples this replica's n transitions of the global batch, each independently.

    Samples from an empty replay have NaN rewards, because a compiled step cannot raise an error.

    Raises:
      UsageError: the replay is empty, and the step runs eagerly.
    """
    if tf.executing_eagerly() and not self.size():
      raise UsageError("Replay.sample: there is no transition yet; first insert more than n_step = "
                       f"{self._n_step} timesteps of a stream")
    index, priority = self.draw(n)
    floatx = keras.config.floatx()
    places = self.later(index[:, tf.newaxis], tf.range(self._n_step, dtype=tf.int64))
    flags = replicated.gather(self.flag, places)
    rewards = tf.cast(replicated.gather(self.reward, places), floatx)
    seen: Callable[[tf.Tensor], tf.Tensor] = self._observed
    if hindsight := self._hindsight:
      goal, flags, rewards = hindsight.relabel(index, places, flags, rewards)
      seen = lambda places: hindsight.with_goal(self._observed(places), goal)
    reward, discount, steps = self._summed(flags, rewards)
    priority = tf.cast(priority, floatx)
    return Transitions(
        observation=seen(index),
        action=tf.cast(replicated.gather(self.action, index), floatx),
        reward=tf.where(priority > 0, reward, np.nan),
        discount=discount,
        next_observation=seen(self.later(index, steps)),
        weight=(priorities.weights(priority, self._importance_exponent) if self.prioritized else
                tf.ones_like(priority)), index=index)

  def draw(self, n: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws indices of this replica's n samples, int64 [n], and their priorities, float32 [n]."""
    counted = [self.drawn, self.samples_per_insert, self.written]
    replicated.update(counted, _count, tf.constant(n * replicator.num_replicas(), tf.int64))
    return self.priorities.draw(replicator.random.uniform("replay", [n], dtype="float64"))

  def scalars(self) -> dict[str, tf.Tensor]:
    """Returns variables for logging, [].

    `replay_size`, the number of transitions; `samples_per_insert`, how often a timestep was sampled
    on average; and `largest_priority`, if there are priorities.
    """
    found = {"replay_size": self.drawable, "samples_per_insert": self.samples_per_insert}
    return {**found, **({"largest_priority": self.largest_priority} if self.prioritized else {})}

  def _summed(self, flag: tf.Tensor, rewards: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Computes return, discount and steps [n], given flags and rewards [n, n_step]."""
    floatx = keras.config.floatx()
    k = tf.range(self._n_step, dtype=tf.int64)
    is_last = tf.equal(flag[:, :-1], TERMINATED) | tf.equal(flag[:, 1:], END)
    steps = tf.reduce_min(tf.where(is_last, 1 + k[:-1], self._n_step), 1)
    steps = tf.minimum(steps, self._n_step)  # With n_step = 1, the minimum was over no columns.
    is_inside = k < steps[:, tf.newaxis]
    powers = tf.constant(self.discount ** np.arange(self._n_step + 1), floatx)
    is_terminated = tf.reduce_any(is_inside & tf.equal(flag, TERMINATED), 1)
    return (tf.reduce_sum(tf.where(is_inside, rewards * powers[:-1], 0), 1),
            tf.where(is_terminated, tf.zeros([], floatx), tf.gather(powers, steps)), steps)

  def _observed(self, index: tf.Tensor) -> tf.Tensor:
    """Returns stacked observations at indices [n]: floatx, or float64 `[n, *shape]`."""
    places = [index]
    for _ in range(self._stack - 1):
      before = self.later(places[0], -1)
      is_first = tf.equal(replicated.gather(self.flag, before), END)
      places.insert(0, tf.where(is_first, places[0], before))
    stack = tf.concat([replicated.gather(self.observation, place) for place in places], -1)
    if stack.dtype != tf.float64:  # float64 may have more digits than floatx.
      stack = tf.cast(stack, keras.config.floatx())
    return self._augment(stack) if self._augment else stack

  def later(self, index: tf.Tensor, steps: tf.Tensor | int) -> tf.Tensor:
    """Returns indices in the same streams, some steps later: int64, with broadcasting."""
    position = index % self.stream_capacity
    return index - position + (position + steps) % self.stream_capacity

  def update_priorities(self, transitions: Transitions, errors: tf.Tensor) -> None:
    """Sets the priorities of sampled transitions from errors, if priority_exponent is above 0.

    A transition that has since been overwritten keeps priority 0. One whose error is not finite
    keeps its priority.

    Args:
      transitions: from `sample`, on this replica.
      errors: [n], of either sign.

    Raises:
      UsageError: the errors have the wrong shape.
    """
    if len(errors.shape) != 1:
      raise UsageError(f"Replay.update_priorities: the errors are {list(errors.shape)}; give one "
                       "for each transition, [n]")
    self.is_updated = True
    if not self.prioritized:
      return
    index, errors = replicator.all_concat(
        [transitions.index, tf.cast(tf.stop_gradient(errors), tf.float32)])
    change = lambda copies, index, errors: priorities.change(
        copies, index, errors, self._priority_exponent)
    replicated.update([self.largest_priority, *self.priorities.levels], change, index, errors)


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
    raise UsageError("Replay: TensorFlow cannot store uint8 observations in several processes; set "
                     "Replicator.strategy = 'mirrored', or do not observe pixels") from error
