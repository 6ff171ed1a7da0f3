"""An environment whose steps are all known, and which fails on demand."""

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest


class Scripted(gymnasium.Env):
  """Observes [share of its seed, step, last action], rewards the action, and fails as scripted.

  Args:
    log: receives an entry for every event: 'made', 'reset', 'closed', and each action.
    length: steps after which an episode terminates.
    failures: by (number of the reset, step of that episode), or by step in every episode: an
      exception to raise, or `(first number of the observation, reward)` to return.
    drifts: whether an episode depends on earlier ones.
    bound: actions are in [-1, bound].
    info: the info of a step, by its number in the episode.
  """

  def __init__(self, log: list, length: int = 7, failures: dict | None = None,
               drifts: bool = False, bound: float = 3.0, info: dict | None = None):
    log.append("made")
    self._log, self._length, self._failures, self._drifts = log, length, failures or {}, drifts
    self._info = info or {}
    box = gymnasium.spaces.Box
    self.observation_space = gymnasium.spaces.Dict({
        "a": box(-np.inf, np.inf, [], np.float64), "b": box(-np.inf, np.inf, [2], np.float64)})
    self.action_space = box(-1.0, bound, [1], np.float32)

  def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
    self._log.append("reset")
    self._step, self._number = 0, self._log.count("reset")
    self._start = (seed or 0) / 2**32 + (self._number if self._drifts else 0)
    self._failure()
    return self._observation(0.0), {}

  def step(self, action: np.ndarray) -> tuple:
    self._step += 1
    self._log.append(float(action[0]))
    failure = self._failure()
    if failure:
      return {"a": np.float64(failure[0]), "b": np.zeros(2)}, failure[1], False, False, {}
    return (self._observation(action[0]), float(action[0]), self._step == self._length, False,
            self._info.get(self._step, {}))

  def close(self) -> None:
    self._log.append("closed")

  def _failure(self) -> Any:
    failure = self._failures.get((self._number, self._step), self._failures.get(self._step))
    if isinstance(failure, BaseException):
      raise failure
    return failure

  def _observation(self, action: float) -> dict:
    return {"a": np.float64(self._start), "b": np.array([self._step, action])}


@pytest.fixture
def scripted() -> Iterator[Callable[..., list]]:
  """Registers 'Scripted-v0' with some arguments of `Scripted`; returns its log."""
  log: list = []

  def register(**settings: Any) -> list:
    gymnasium.register("Scripted-v0", lambda: Scripted(log, **settings), max_episode_steps=50)
    return log

  yield register
  gymnasium.registry.pop("Scripted-v0", None)
