"""Hindsight: replaces the goals of sampled transitions with goals reached later in the episode."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import replicator
from models.rl.replay.timesteps import CONTINUES, END, TERMINATED, Timesteps
from replicator import UsageError, replicated
from replicator.errors import from_0_to_1

import gin
import keras
import numpy as np
import tensorflow as tf

if TYPE_CHECKING:
  from models.rl.replay.replay import Replay

_CHECKED = 1000  # Timesteps that are compared with the reward function.
Places = tuple[int, int, int]
"""The location of goals in an observation: start of the achieved and of the desired goal, and the
length of both."""


@gin.configurable(denylist=["achieved", "goal"])
def sparse_reward(achieved: tf.Tensor, goal: tf.Tensor, threshold: float = 0.05,
                  reached: float = 0.0, missed: float = -1.0) -> tf.Tensor:
  """Returns rewards for reaching a goal: `[..., g], [..., g] -> [...]`.

  Args:
    achieved: the achieved goal.
    goal: the desired goal.
    threshold: the largest distance at which a goal counts as reached.
    reached: the reward if it is reached.
    missed: the reward otherwise.
  """
  distance = tf.norm(achieved - goal, axis=-1)
  return tf.where(distance <= threshold, tf.constant(reached, distance.dtype),
                  tf.constant(missed, distance.dtype))


@gin.configurable(denylist=["replay", "goals", "max_episode_steps"])
class Hindsight:
  """Relabeling of goals with goals achieved later in the episode (Andrychowicz et al. 2017).

  Each later timestep of the episode is equally likely: the paper's strategy 'future',
  arXiv:1707.01495, section 4.5. The transition's rewards are recomputed for the new goal.

  Args:
    replay: the replay that samples.
    goals: the location of goals in an observation.
    max_episode_steps: the length of the longest episode.
    reward: the environment's reward as a TensorFlow function of the goal achieved after a step, and
      the desired goal: `[..., g], [..., g] -> [...]`. It is checked on the first timesteps.
    share: fraction of transitions with a new goal; 0.8 is k = 4 in the paper.
    terminates_at: episodes terminate at a reward of at least this, which means that the goal is
      reached; None if they continue, as in Gymnasium-Robotics.
  """

  def __init__(self, replay: "Replay", goals: Places, max_episode_steps: int,
               reward: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] = sparse_reward,
               share: float = 0.8, terminates_at: float | None = None):
    from_0_to_1("Hindsight", share=share)
    self._replay, self._reward, self._share = replay, reward, share
    self._achieved, self._desired, self._size = goals
    self._terminates_at = terminates_at
    self._ahead = min(max_episode_steps, replay.stream_capacity - 1)
    self._checked = 0

  def relabel(self, index: tf.Tensor, places: tf.Tensor, flag: tf.Tensor, reward: tf.Tensor
              ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Chooses goals for transitions, and recomputes their flags and rewards.

    Args:
      index: int64 [n], their first timesteps.
      places: int64 [n, m], all their timesteps.
      flag: int64 [n, m], flags of the timesteps.
      reward: floatx [n, m], rewards of the timesteps.

    Returns:
      The goals [n, g], and flags and rewards for these goals.
    """
    draws = replicator.random.uniform("hindsight", [index.shape[0], 2], dtype="float64")
    ahead = tf.cast(tf.floor(draws[:, 1] * tf.cast(self._left(index), tf.float64)), tf.int64)
    later = self._observed(self._replay.later(index, 1 + ahead))
    is_new = draws[:, :1] < self._share
    goal = tf.where(is_new, self._part(later, self._achieved),
                    self._part(self._observed(index), self._desired))
    achieved = self._part(self._observed(self._replay.later(places, 1)), self._achieved)
    of_goal = tf.cast(self._reward(achieved, goal[:, tf.newaxis]), reward.dtype)
    if self._terminates_at is not None:
      ended = tf.equal(flag, TERMINATED) & (reward < self._terminates_at)  # By something else.
      ends = (of_goal >= self._terminates_at) & tf.not_equal(flag, END)
      new = tf.where(ends | ended, tf.constant(TERMINATED, flag.dtype),
                     tf.where(tf.equal(flag, END), flag, tf.constant(CONTINUES, flag.dtype)))
      flag = tf.where(is_new, new, flag)
    return goal, flag, tf.where(is_new, of_goal, reward)

  def with_goal(self, observations: tf.Tensor, goal: tf.Tensor) -> tf.Tensor:
    """Replaces the desired goals in observations: `[n, c], [n, g] -> [n, c]`."""
    end = self._desired + self._size
    return tf.concat([observations[:, :self._desired], goal, observations[:, end:]], 1)

  def _left(self, index: tf.Tensor) -> tf.Tensor:
    """Returns the number of later timesteps in the same episode: int64 [n] -> int64 [n]."""
    replay = self._replay
    steps = tf.range(1, self._ahead + 1, dtype=tf.int64)
    flags = replicated.gather(replay.flag, replay.later(index[:, tf.newaxis], steps))
    to_end = tf.reduce_min(tf.where(tf.equal(flags, END), steps, self._ahead), 1)
    written = replicated.gather(replay.written, index // replay.stream_capacity)
    to_newest = (written - 1 - index) % replay.stream_capacity
    return tf.minimum(to_end, to_newest)

  def _observed(self, places: tf.Tensor) -> tf.Tensor:
    found = replicated.gather(self._replay.observation, places)
    return found if found.dtype == tf.float64 else tf.cast(found, keras.config.floatx())

  def _part(self, observations: tf.Tensor, first: int) -> tf.Tensor:
    return observations[..., first:first + self._size]

  def check(self, timesteps: Timesteps) -> None:
    """Checks the reward function on the first inserted timesteps of a run.

    Raises:
      UsageError: its rewards differ, or episodes end differently.
    """
    if self._checked >= _CHECKED:
      return
    rows = np.argsort(timesteps.stream, kind="stable")
    stream, observation, _, reward, flag = (part[rows] for part in timesteps)
    at = np.flatnonzero((stream[1:] == stream[:-1]) & (flag[:-1] != END))
    if not at.size:
      return
    self._checked += at.size
    achieved, goal = (self._part(observation, first).astype(np.float64)
                      for first in (self._achieved, self._desired))
    expected = np.asarray(self._reward(tf.constant(achieved[at + 1]), tf.constant(goal[at])))
    reward, is_end = reward[at], flag[at] == TERMINATED
    wrong = np.flatnonzero(~np.isclose(expected, reward, atol=1e-4))
    if wrong.size > 0.01 * at.size:  # Rounding may change a few at the threshold.
      i = wrong[0]
      distance = np.linalg.norm(achieved[at[i] + 1] - goal[at[i]])
      raise UsageError(
          f"Hindsight.reward: is {expected[i]:.6g} where the environment's reward is "
          f"{reward[i]:.6g}, at a distance of {distance:.6g} from the goal; use the reward of this "
          "environment, for example with a different sparse_reward.threshold")
    self._check_ends(reward, is_end)

  def _check_ends(self, reward: np.ndarray, is_end: np.ndarray) -> None:
    best = reward.max()
    if self._terminates_at is None and best > reward.min() and is_end[reward == best].all():
      raise UsageError(f"Hindsight.terminates_at = None: episodes terminate with the reward "
                       f"{best:.6g}; set Hindsight.terminates_at = {best:.6g}")
    if self._terminates_at is not None and not is_end[reward >= self._terminates_at].all():
      raise UsageError(f"Hindsight.terminates_at = {self._terminates_at}: an episode continues "
                       f"after the reward {best:.6g}; use None")
