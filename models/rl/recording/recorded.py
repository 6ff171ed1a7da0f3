"""Recorded episodes in a replay, instead of or in addition to an actor's."""

from collections.abc import Sequence

from models.rl.acting.actor import warn
from models.rl.acting.environment_loop import Adder
from models.rl.acting.memory import Act
from models.rl.acting.reward_normalizer import RewardNormalizer
from models.rl.environments.environments import Environments
from models.rl.networks.observation_normalizer import Normalizer
from models.rl.recording import dataset
from models.rl.recording.conversion import timesteps_of
from models.rl.replay.replay import Replay
from models.rl.replay.sequences import SequenceReplay
from replicator import UsageError, replicated

import numpy as np
import tensorflow as tf

Folders = str | Sequence[str]
"""Data sets of episodes, see `dataset`."""


def insert(folders: Folders, environments: Environments, replay: Replay | SequenceReplay,
           normalizer: Normalizer | None = None, rewards: RewardNormalizer | None = None) -> None:
  """Inserts all episodes of some data sets into a replay, which must have room for them.

  The normalizers, if given, receive the observations and normalize the rewards. Each episode
  goes into the stream with the fewest timesteps.

  Raises:
    UsageError: a data set does not match the environments, or the replay has too little room.
  """
  adder = Adder(replay, normalizer, warn, rewards)
  lengths = np.zeros([environments.number], np.int64)
  for folder in [folders] if isinstance(folders, str) else folders:
    for episode in dataset.read(folder):
      stream = int(lengths.argmin())
      timesteps = timesteps_of(environments, episode, stream, folder)
      lengths[stream] += len(timesteps.flag)
      adder.add(timesteps)
  stored = replay.timesteps if isinstance(replay, SequenceReplay) else replay
  room = stored.stream_capacity
  if lengths.max() > room:
    raise UsageError(f"Replay.capacity: the recorded episodes have {lengths.sum()} timesteps, but "
                     f"there is room for {room * environments.number}; use "
                     f"{lengths.max() * environments.number}")
  adder.flush()


class RecordedActor(tf.Module):
  """An actor for offline agents, which fills a replay with recorded episodes and never acts.

  It has the methods and attributes of `Actor`. No environment takes a step.
  """

  def __init__(self, environments: Environments, replay: Replay | SequenceReplay,
               normalizer: Normalizer | None, folders: Folders,
               rewards: RewardNormalizer | None = None):
    super().__init__()
    self.environments, self._replay, self._normalizer = environments, replay, normalizer
    self._folders, self.rewards = folders, rewards
    self.environment_steps, self.episodes = (replicated.variable(0, tf.int64) for _ in range(2))

  def collect(self, act: Act, until: int, step: int = 0) -> None:
    """Inserts all episodes before the first step."""
    if not self._replay.size():
      insert(self._folders, self.environments, self._replay, self._normalizer, self.rewards)

  def scalars(self) -> dict[str, tf.Tensor]:
    """Returns no scalars, because nothing changes."""
    return {}

  def close(self) -> None:
    """See `Actor`."""
    self.environments.close()
