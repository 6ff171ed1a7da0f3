"""The present episodes of several environments, which can be played again.

An environment cannot be saved. But an episode is a function of the seed that it began with and of
the actions since: those are kept, and after a restart the episodes are played again up to where
they were.
"""

import collections
import dataclasses
from collections.abc import Callable

import numpy as np

from models.rl.action_noise import ActionNoise
from models.rl.environments import Environments, EnvironmentsLost, Outcome, merged
from models.rl.saved_state import RECENT
from models.rl.timesteps import CONTINUES, TERMINATED, Timesteps, ends
from replicator.errors import RunFailed

_MOST_FAILURES = 10  # One after the other.


@dataclasses.dataclass
class ActorState:
  """Where acting is; n environments, episodes of at most t steps.

  Attributes:
    environment_steps: of all environments together.
    episodes: finished ones.
    recent_returns: float64 [10], of the last finished episodes, the newest last.
    episode: int64 [n], number of each environment's present episode.
    length: int64 [n], steps that were taken in it.
    actions: float32 [n, t, a], in these steps.
    observation: [n, *shape], present ones; never changed in place.
    episode_return: float64 [n], sum of the rewards so far.
  """

  environment_steps: int
  episodes: int
  recent_returns: np.ndarray
  episode: np.ndarray
  length: np.ndarray
  actions: np.ndarray
  observation: np.ndarray
  episode_return: np.ndarray


class EnvironmentLoop:
  """Takes steps in all environments together, and tells of them in rows.

  Args:
    environments: n.
    draws: the seeds of episodes.
    warn: is called with one line when an environment fails.

  Attributes:
    rows: what happened, in parts; to be taken away.
    new_actions: bool [n, t], which of `ActorState.actions` were taken; to be set to False.
  """

  def __init__(self, environments: Environments, draws: ActionNoise, warn: Callable[[str], None]):
    self._environments, self._draws, self._warn = environments, draws, warn
    n = environments.number
    self.rows: collections.deque[Timesteps] = collections.deque()
    self.new_actions = np.zeros([n, environments.episode_steps], bool)
    self._all = np.arange(n, dtype=np.int32)
    self._failures = np.zeros([n], np.int64)  # Since the last good step.
    self._losses = 0

  def start(self) -> ActorState:
    """Before the first step: to be played again before anything else."""
    e, n = self._environments, len(self._all)
    return ActorState(
        0, 0, np.zeros([RECENT]), np.zeros([n], np.int64), np.zeros([n], np.int64),
        np.zeros([n, e.episode_steps, e.action_size], np.float32),
        np.zeros([n, *e.observation_shape], e.observation_dtype), np.zeros([n]))

  def advance(self, state: ActorState, actions: np.ndarray) -> None:
    """One step of all environments, and new episodes where one ended.

    Raises:
      RunFailed: an environment does nothing but fail.
    """
    outcome = self._step(state, actions)
    state.environment_steps += len(self._all)
    state.actions[self._all, state.length] = actions
    self.new_actions[self._all, state.length] = True
    state.length += 1
    rows = Timesteps(self._all, state.observation, actions, outcome.reward.astype(np.float32),
                np.where(outcome.terminated, np.uint8(TERMINATED), np.uint8(CONTINUES)))
    if outcome.failures:
      self._end_failed(state, outcome, rows)
    else:
      self.rows.append(rows)
      self._failures[:], self._losses = 0, 0
      state.episode_return += outcome.reward
      state.observation = outcome.observation
      self._finish(state, outcome.terminated | outcome.truncated)

  def play_again(self, state: ActorState) -> None:
    """Plays all present episodes again; one that turns out otherwise is ended where it was.

    Raises:
      RunFailed: an environment does nothing but fail.
    """
    while True:
      try:
        observation, returns, failures = self._played(state)
        break
      except EnvironmentsLost as error:
        self._tell_loss(error)
    again = state.length > 0
    same = np.array([i not in failures and returns[i] == state.episode_return[i]
                     and observation[i].tobytes() == state.observation[i].tobytes()
                     for i in range(len(again))])
    state.observation = merged(again, state.observation, observation)
    for i in np.flatnonzero(again & ~same).tolist():
      self._warn(f"{self._environments.name}: environment {i} is not deterministic (or another "
                 f"version): its episode {state.episode[i]}, played again for {state.length[i]} "
                 "steps, came out otherwise, so the run does not resume exactly; a new one begins")
    for i, why in failures.items():
      if not again[i]:
        self._tell(state, i, why)
        self._begin(state, np.array([i]))
    if (again & ~same).any():
      self._end(state, np.flatnonzero(again & ~same))

  def _played(self, state: ActorState) -> tuple[np.ndarray, np.ndarray, dict[int, str]]:
    """Observations [n, *shape], returns [n], and what could not be played to where it was."""
    observation, failures = self._environments.reset(self._seeds(state, self._all))
    returns = np.zeros([len(self._all)])
    for k in range(int(state.length.max())):
      active = k < state.length
      active[list(failures)] = False
      outcome = self._environments.step(state.actions[:, k], active)
      observation, returns = outcome.observation, returns + outcome.reward
      over = np.flatnonzero(active & (outcome.terminated | outcome.truncated)).tolist()
      failed = {**dict.fromkeys(over, "it ended"), **outcome.failures}
      if failed:
        failures.update(failed)
        self._environments.reset(self._seeds(state, np.array(list(failed))))
    return observation, returns, failures

  # ---- Steps, beginnings and ends ---------------------------------------------------------------

  def _step(self, state: ActorState, actions: np.ndarray) -> Outcome:
    while True:
      try:
        return self._environments.step(actions)
      except EnvironmentsLost as error:
        self._tell_loss(error)
        self.play_again(state)

  def _end_failed(self, state: ActorState, outcome: Outcome, rows: Timesteps) -> None:
    """The step of the environments that did not fail, and the end of the episodes that did."""
    good = ~np.isin(self._all, list(outcome.failures))
    self.rows.append(Timesteps(*(part[good] for part in rows)))
    for i, why in outcome.failures.items():
      self._tell(state, i, why)
    self._failures[good] = 0
    state.episode_return[good] += outcome.reward[good]
    # After a failure the last good observation is the end.
    state.observation = merged(good, outcome.observation, state.observation)
    self._finish(state, good & (outcome.terminated | outcome.truncated))
    self._end(state, np.flatnonzero(~good))

  def _finish(self, state: ActorState, ended: np.ndarray) -> None:
    """Counts episodes that ended as they should, and begins new ones; ended: bool [n]."""
    which = np.flatnonzero(ended)
    if len(which):
      recent = np.append(state.recent_returns, state.episode_return[which])
      state.recent_returns = recent[-RECENT:]
      state.episodes += len(which)
      self._end(state, which)

  def _end(self, state: ActorState, which: np.ndarray) -> None:
    """Ends the episodes of some environments where they are, and begins new ones."""
    self.rows.append(ends(which, state.observation, state.actions.shape[2]))
    self._begin(state, which)

  def _begin(self, state: ActorState, which: np.ndarray) -> None:
    while len(which):
      state.episode[which] += 1
      state.length[which], state.episode_return[which] = 0, 0.0
      try:
        observation, failures = self._environments.reset(self._seeds(state, which))
      except EnvironmentsLost as error:
        self._tell_loss(error)
        self.play_again(state)
        return
      state.observation = merged(np.isin(self._all, which), observation, state.observation)
      for i, why in failures.items():
        self._tell(state, i, why)
      which = np.array(list(failures), np.int64)

  def _seeds(self, state: ActorState, which: np.ndarray) -> dict[int, int]:
    return {int(i): self._draws.episode_seed(int(i), int(state.episode[i])) for i in which}

  # ---- Failures ---------------------------------------------------------------------------------

  def _tell(self, state: ActorState, i: int, why: str) -> None:
    self._warn(f"{self._environments.name}: environment {i}, episode {state.episode[i]}, step "
               f"{state.length[i]}: {why}; the episode ends there, and a new one begins")
    self._failures[i] += 1
    if self._failures[i] == _MOST_FAILURES:
      raise RunFailed(f"{self._environments.name}: environment {i} failed {_MOST_FAILURES} times "
                      f"without a good step in between; the last time: {why}")

  def _tell_loss(self, error: EnvironmentsLost) -> None:
    self._losses += 1
    if self._losses == _MOST_FAILURES:
      raise RunFailed(f"{error}, {_MOST_FAILURES} times without a good step in between")
    self._warn(f"{error}; all are made anew, and go on where they were")
