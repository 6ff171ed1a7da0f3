"""A replay of sequences, for agents that learn with a recurrent network.

A sequence is a window of the timesteps of one stream. It may begin anywhere, and continues across
the ends of episodes; flags mark where an episode begins.
"""

from typing import NamedTuple

from models.rl.replay.replay import Replay
from models.rl.replay.timesteps import END, TERMINATED, Timesteps
from replicator import replicated
from replicator.errors import at_least_one

import gin
import keras
import tensorflow as tf


class Sequences(NamedTuple):
  """n sequences of t observations with the previous actions and rewards, all floatx.

  At the first observation of an episode, the previous action and reward are zeros.
  """

  observation: tf.Tensor  # [n, t, *shape]
  action: tf.Tensor  # [n, t, a], the action before the observation.
  reward: tf.Tensor  # [n, t], the reward for that action.
  terminated: tf.Tensor  # bool [n, t], whether the episode terminated at the observation.
  is_first: tf.Tensor  # bool [n, t], whether an episode begins with the observation.


@gin.configurable(denylist=["observation_shape", "action_size", "streams", "observation_dtype"])
class SequenceReplay(tf.Module):
  """The newest timesteps of each stream, sampled as sequences.

  Create it in the constructor of a step. Every replica has a copy with all timesteps.

  A sequence of t observations takes t + 1 timesteps: the first has the action and reward before the
  first observation. All start positions are equally likely, except for the very first observation
  of an episode. `Replay.capacity` determines how many timesteps are stored.

  Args:
    observation_shape: shape of one observation.
    action_size: length of an action.
    streams: number of environments that write into it.
    observation_dtype: 'float32', 'float64' or 'uint8', the dtype of stored observations.
    length: t.

  Attributes:
    timesteps: a `Replay` that stores the timesteps.

  Raises:
    UsageError: a setting is invalid.
  """

  def __init__(self, observation_shape: tuple[int, ...], action_size: int, streams: int, *,
               observation_dtype: str = "float32", length: int = 64):
    super().__init__()
    at_least_one("SequenceReplay", length=length)
    self.length = length
    self.timesteps = Replay(observation_shape, action_size, streams, n_step=length,
                            observation_dtype=observation_dtype, discount=1.0,
                            priority_exponent=0.0, importance_exponent=0.0)

  def size(self) -> int:
    """Returns the current number of possible start positions of a sequence."""
    return self.timesteps.size()

  def insert(self, timesteps: Timesteps) -> None:
    """Appends timesteps to their streams; see `Replay.insert`."""
    self.timesteps.insert(timesteps)

  def sample(self, n: int) -> Sequences:
    """Samples this replica's n sequences of the global batch, each independently.

    The replay must not be empty.
    """
    stored, floatx = self.timesteps, keras.config.floatx()
    first, _ = stored.draw(n)
    places = stored.later(first[:, tf.newaxis], tf.range(self.length + 1, dtype=tf.int64))
    before = places[:, :-1]
    flag = replicated.gather(stored.flag, before)
    is_first = tf.equal(flag, END)
    return Sequences(
        observation=tf.cast(replicated.gather(stored.observation, places[:, 1:]), floatx),
        # The action and the reward of an END are zeros.
        action=tf.cast(replicated.gather(stored.action, before), floatx),
        reward=tf.cast(replicated.gather(stored.reward, before), floatx),
        terminated=tf.equal(flag, TERMINATED), is_first=is_first)

  def scalars(self) -> dict[str, tf.Tensor]:
    """Returns scalars for logging; see `Replay.scalars`, where a sample is a sequence here."""
    return self.timesteps.scalars()
