"""The environment loop: steps of several environments, and episodes that can be replayed.

An environment cannot be saved. But an episode is a function of its seed and of its actions. Those
are saved, and after a restart the unfinished episodes are replayed up to where they were.
"""

import dataclasses
from collections.abc import Callable

from models.rl.acting.action_noise import ActionNoise
from models.rl.acting.saved_state import RECENT
from models.rl.environments.environments import Environments, EnvironmentsLost, Outcome, merged
from models.rl.networks.observation_normalizer import Normalizer
from models.rl.replay.replay import Replay
from models.rl.replay.rollouts import Rollouts
from models.rl.replay.sequences import SequenceReplay
from models.rl.replay.timesteps import CONTINUES, TERMINATED, Timesteps, ends
from replicator.errors import RunFailed

import numpy as np


class Adder:
  """Gathers timesteps, and inserts them into a replay together.

  The normalizer, if there is one, receives their observations.
  """

  def __init__(self, replay: Replay | SequenceReplay | Rollouts, normalizer: Normalizer | None):
    self._replay, self._normalizer = replay, normalizer
    self._parts: list[Timesteps] = []

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


_MAX_FAILURES = 10  # In a row.


@dataclasses.dataclass
class ActorState:
  """The state of acting in n environments, with episodes of at most t steps."""

  environment_steps: int  # All environments together.
  episodes: int  # Finished ones.
  recent_returns: np.ndarray  # float64 [10], of the last finished episodes, the newest last.
  episode: np.ndarray  # int64 [n], the number of each environment's current episode.
  length: np.ndarray  # int64 [n], the steps of the current episodes so far.
  actions: np.ndarray  # float32 [n, t, a], the actions of those steps.
  observation: np.ndarray  # [n, *shape], the current observations; never changed in place.
  episode_return: np.ndarray  # float64 [n], the sum of the rewards of the current episodes so far.
  memory: np.ndarray | None = None  # [n, m], that of a recurrent policy; None for other policies.


class EnvironmentLoop:
  """Takes steps in all environments together, and passes their timesteps to an adder.

  `warn` is called with one line when an environment fails. `new_actions`, bool [n, t], says which
  of `ActorState.actions` are new; the caller resets it.
  """

  def __init__(self, environments: Environments, noise: ActionNoise, adder: Adder,
               warn: Callable[[str], None]):
    self._environments, self._noise, self._adder, self._warn = environments, noise, adder, warn
    n = environments.number
    self.new_actions = np.zeros([n, environments.episode_steps], bool)
    self._all = np.arange(n, dtype=np.int32)
    self._failures = np.zeros([n], np.int64)  # Since the last good step.
    self._losses = 0

  def start(self, memory: np.ndarray | None = None) -> ActorState:
    """The state before the first step. `replay_episodes` must be called with it first."""
    e, n = self._environments, len(self._all)
    return ActorState(
        0, 0, np.zeros([RECENT]), np.zeros([n], np.int64), np.zeros([n], np.int64),
        np.zeros([n, e.episode_steps, e.action_size], np.float32),
        np.zeros([n, *e.observation_shape], e.observation_dtype), np.zeros([n]), memory)

  def advance(self, state: ActorState, actions: np.ndarray) -> None:
    """Takes one step in all environments, and begins a new episode where one ended.

    Raises:
      RunFailed: an environment fails again and again.
    """
    outcome = self._step(state, actions)
    state.environment_steps += len(self._all)
    state.actions[self._all, state.length] = actions
    self.new_actions[self._all, state.length] = True
    state.length += 1
    with np.errstate(over="ignore"):  # Those that are too large are failures.
      reward = outcome.reward.astype(np.float32)
    timesteps = Timesteps(
        self._all, state.observation, actions, reward,
        np.where(outcome.terminated, np.uint8(TERMINATED), np.uint8(CONTINUES)))
    if outcome.failures:
      self._end_failed(state, outcome, timesteps)
    else:
      self._adder.add(timesteps)
      self._failures[:], self._losses = 0, 0
      state.episode_return += outcome.reward
      state.observation = outcome.observation
      self._finish(state, outcome.terminated | outcome.truncated)

  def replay_episodes(self, state: ActorState) -> None:
    """Replays all current episodes. One that comes out differently ends where it was.

    Raises:
      RunFailed: an environment fails again and again.
    """
    while True:
      try:
        observation, returns, failures = self._replayed(state)
        break
      except EnvironmentsLost as error:
        self._report_loss(error)
    begun = state.length > 0
    same = np.array([i not in failures and returns[i] == state.episode_return[i]
                     and observation[i].tobytes() == state.observation[i].tobytes()
                     for i in range(len(begun))])
    state.observation = merged(begun, state.observation, observation)
    for i in np.flatnonzero(begun & ~same).tolist():
      self._warn(f"{self._environments.name}: environment {i} is not deterministic (or its version "
                 f"changed): a replay of the {state.length[i]} steps of episode {state.episode[i]} "
                 "came out differently, so the run does not resume exactly; a new episode begins")
    for i, why in failures.items():
      if not begun[i]:
        self._report_failure(state, i, why)
        self._begin(state, np.array([i]))
    if (begun & ~same).any():
      self._end(state, np.flatnonzero(begun & ~same))

  def _replayed(self, state: ActorState) -> tuple[np.ndarray, np.ndarray, dict[int, str]]:
    """Observations [n, *shape], returns [n], and why some episodes could not be replayed."""
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

  # ---- Steps, and the beginning and end of episodes ---------------------------------------------

  def _step(self, state: ActorState, actions: np.ndarray) -> Outcome:
    while True:
      try:
        return self._environments.step(actions)
      except EnvironmentsLost as error:
        self._report_loss(error)
        self.replay_episodes(state)

  def _end_failed(self, state: ActorState, outcome: Outcome, timesteps: Timesteps) -> None:
    """Adds the step of the environments that work, and ends the episodes of those that failed."""
    good = ~np.isin(self._all, list(outcome.failures))
    self._adder.add(Timesteps(*(part[good] for part in timesteps)))
    for i, why in outcome.failures.items():
      self._report_failure(state, i, why)
    self._failures[good] = 0
    state.episode_return[good] += outcome.reward[good]
    # A failed episode ends with its last good observation.
    state.observation = merged(good, outcome.observation, state.observation)
    self._finish(state, good & (outcome.terminated | outcome.truncated))
    self._end(state, np.flatnonzero(~good))

  def _finish(self, state: ActorState, ended: np.ndarray) -> None:
    """Counts the episodes that finished (bool [n]), and begins new ones."""
    which = np.flatnonzero(ended)
    if len(which):
      recent = np.append(state.recent_returns, state.episode_return[which])
      state.recent_returns = recent[-RECENT:]
      state.episodes += len(which)
      self._end(state, which)

  def _end(self, state: ActorState, which: np.ndarray) -> None:
    """Ends the episodes of some environments where they are, and begins new ones."""
    self._adder.add(ends(which, state.observation, state.actions.shape[2]))
    self._begin(state, which)

  def _begin(self, state: ActorState, which: np.ndarray) -> None:
    while len(which):
      state.episode[which] += 1
      state.length[which], state.episode_return[which] = 0, 0.0
      if state.memory is not None:
        state.memory[which] = 0.0
      try:
        observation, failures = self._environments.reset(self._seeds(state, which))
      except EnvironmentsLost as error:
        self._report_loss(error)
        self.replay_episodes(state)
        return
      state.observation = merged(np.isin(self._all, which), observation, state.observation)
      for i, why in failures.items():
        self._report_failure(state, i, why)
      which = np.array(list(failures), np.int64)

  def _seeds(self, state: ActorState, which: np.ndarray) -> dict[int, int]:
    return {int(i): self._noise.episode_seed(int(i), int(state.episode[i])) for i in which}

  # ---- Failures ---------------------------------------------------------------------------------

  def _report_failure(self, state: ActorState, i: int, why: str) -> None:
    self._warn(f"{self._environments.name}: environment {i}, episode {state.episode[i]}, step "
               f"{state.length[i]}: {why}; the episode ends there, and a new one begins")
    self._failures[i] += 1
    if self._failures[i] == _MAX_FAILURES:
      raise RunFailed(f"{self._environments.name}: environment {i} failed {_MAX_FAILURES} times "
                      f"without a good step in between; the last time: {why}")

  def _report_loss(self, error: EnvironmentsLost) -> None:
    self._losses += 1
    if self._losses == _MAX_FAILURES:
      raise RunFailed(f"{error}, {_MAX_FAILURES} times without a good step in between")
    self._warn(f"{error}; all environments are started again and continue where they were")
