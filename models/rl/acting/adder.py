"""The adder: it passes on to the replay what an actor collects."""

import collections

import numpy as np

from models.rl.networks.observation_normalizer import Normalizer
from models.rl.replay.replay import Replay
from models.rl.replay.timesteps import Timesteps


class Adder:
  """Gathers timesteps, and inserts them into a replay together.

  Args:
    replay: receives the timesteps.
    normalizer: receives their observations; or None.
  """

  def __init__(self, replay: Replay, normalizer: Normalizer | None):
    self._replay, self._normalizer = replay, normalizer
    self._parts: collections.deque[Timesteps] = collections.deque()

  def add(self, timesteps: Timesteps) -> None:
    """Appends timesteps to those that wait for `flush`."""
    self._parts.append(timesteps)

  def discard(self) -> None:
    """Forgets the timesteps that were not flushed."""
    self._parts.clear()

  def flush(self) -> bool:
    """Inserts all timesteps that wait; returns whether there were any."""
    if not self._parts:
      return False
    timesteps = Timesteps(*(np.concatenate(columns) for columns in zip(*self._parts, strict=True)))
    self._parts.clear()
    self._replay.insert(timesteps)
    if self._normalizer is not None:
      self._normalizer.update(timesteps.observation)
    return True
