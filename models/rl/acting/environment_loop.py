"""The environment loop: steps of several environments, and episodes that can be replayed.

An environment cannot be saved, but an episode is a function of its seed and actions. These are
saved, and after a restart, unfinished episodes are replayed up to where they were.
"""

import dataclasses
from collections.abc import Callable

from models.rl.acting.action_noise import ActionNoise
from models.rl.acting.reward_normalizer import RewardNormalizer
from models.rl.acting.saved_state import RECENT
from models.rl.environments.environments import Environments
from models.rl.environments.outcome import Outcome, merged
from models.rl.environments.vector import EnvironmentsLost
from models.rl.networks.observation_normalizer import Normalizer
from models.rl.replay.replay import Replay
from models.rl.replay.rollouts import Rollouts
from models.rl.replay.sequences import SequenceReplay
from models.rl.replay.timesteps import CONTINUES, TERMINATED, Timesteps, ends, joined
from replicator.errors import RunFailed

import numpy as np


class Adder:
  """A buffer that collects timesteps, and inserts them into a replay together.

  The normalizers, if given, receive their observations and normalize their rewards. `warn` is
  called with one line about suspicious numbers.
  """

  def __init__(self, replay: Replay | SequenceReplay | Rollouts, normalizer: Normalizer | None,
               warn: Callable[[str], None], rewards: RewardNormalizer | None = None):
    self._replay, self._normalizer, self._rewards = replay, normalizer, rewards
    self._warn = warn
    self._parts: list[Timesteps] = []

  def add(self, timesteps: Timesteps) -> None:
    """Adds timesteps to the buffer."""
    self._parts.append(timesteps)

  def discard(self) -> None:
    """Discards the buffered timesteps."""
    self._parts.clear()

  def flush(self, closing: Timesteps | None = None) -> bool:
    """Inserts all buffered timesteps; returns whether there were any.

    Then inserts `closing`, the ENDs of streams whose episodes continue.
    """
    if not self._parts:
      return False
    timesteps = joined(self._parts)
    self._parts.clear()
    if self._rewards is not None:
      timesteps = self._rewards.normalized(timesteps)
    timesteps = joined([timesteps, *([closing] if closing else [])])
    self._replay.insert(timesteps)
    if self._normalizer is not None:
      for line in self._normalizer.update(timesteps.observation):
        self._warn(line)
    return True


_MAX_FAILURES = 10  # In a row.
_FIRST_LENGTH = 1024  # Initial capacity in steps; few episodes are longer.


@dataclasses.dataclass
class ActorState:
  """The state of acting in n environments; t is at least the length of the longest episode."""

  environment_steps: int  # All environments together, in frames of the simulator.
  episodes: int  # The number of finished episodes.
  recent_returns: np.ndarray  # float64 [10], of the last finished episodes, the newest last.
  episode: np.ndarray  # int64 [n], the number of each environment's current episode.
  length: np.ndarray  # int64 [n], the steps of the current episodes so far.
  actions: np.ndarray  # float32 [n, t, a], the actions of those steps.
  observation: np.ndarray  # [n, *shape], the current observations; never changed in place.
  episode_return: np.ndarray  # float64 [n], the sum of the rewards of the current episodes so far.
  memory: np.ndarray | None = None  # [n, m], of a recurrent policy; None for other policies.


class EnvironmentLoop:
  """A loop that steps all environments together, and passes their timesteps to an adder.

  `warn` is called with one line when an environment fails.
  """

  def __init__(self, environments: Environments, noise: ActionNoise, adder: Adder,
               warn: Callable[[str], None]):
    self._environments, self._noise, self._adder, self._warn = environments, noise, adder, warn
    n = environments.number
    self._all = np.arange(n, dtype=np.int32)
    self._failures = np.zeros([n], np.int64)  # Since the last good step.
    self._losses = 0
    self._new: list[np.ndarray] | None = []  # Indices of new actions, [n] each; None for all.

  def start(self, memory: np.ndarray | None = None) -> ActorState:
    """Returns the state before the first step. `replay_episodes` must be called with it first."""
    e, n = self._environments, len(self._all)
    return ActorState(
        0, 0, np.zeros([RECENT]), np.zeros([n], np.int64), np.zeros([n], np.int64),
        np.zeros([n, min(e.max_episode_steps, _FIRST_LENGTH), e.action_size], np.float32),
        np.zeros([n, *e.observation_shape], e.observation_dtype), np.zeros([n]), memory)

  def advance(self, state: ActorState, actions: np.ndarray) -> None:
    """Takes one step in all environments, and starts a new episode where one ended.

    Raises:
      RunFailed: an environment fails repeatedly.
    """
    outcome = self._step(state, actions)
    for line in outcome.warnings:
      self._warn(line)
    state.environment_steps += len(self._all) * self._environments.frames_per_step
    self._remember(state, actions)
    state.length += 1
    with np.errstate(over="ignore"):  # Rewards that are too large are failures.
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

  def new_actions(self) -> np.ndarray | None:
    """Returns the indices of actions since the last call, int64 [k, 2]; None if all are new."""
    new, self._new = self._new, []
    if new is None:
      return None
    steps = np.array(new, np.int64).reshape(-1, len(self._all))
    return np.stack(np.broadcast_arrays(self._all, steps), 2).reshape(-1, 2)

  def replay_episodes(self, state: ActorState) -> None:
    """Replays all current episodes, and ends those whose replay differs.

    Raises:
      RunFailed: an environment fails repeatedly.
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
                 "gave a different result, so the run does not resume exactly; a new episode "
                 "begins")
    for i, why in failures.items():
      if not begun[i]:
        self._report_failure(state, i, why)
        self._begin(state, np.array([i]))
    if (begun & ~same).any():
      self._end(state, np.flatnonzero(begun & ~same))

  def _replayed(self, state: ActorState) -> tuple[np.ndarray, np.ndarray, dict[int, str]]:
    """Replays episodes; returns observations [n, *shape], returns [n], and failures."""
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

  def _remember(self, state: ActorState, actions: np.ndarray) -> None:
    """Stores the actions of a step, and grows the array if needed."""
    if state.length.max() == state.actions.shape[1]:
      state.actions = np.concatenate([state.actions, np.zeros_like(state.actions)], 1)
      self._new = None
    state.actions[self._all, state.length] = actions
    if self._new is not None:
      self._new.append(state.length.copy())

  def _step(self, state: ActorState, actions: np.ndarray) -> Outcome:
    while True:
      try:
        return self._environments.step(actions)
      except EnvironmentsLost as error:
        self._report_loss(error)
        self.replay_episodes(state)

  def _end_failed(self, state: ActorState, outcome: Outcome, timesteps: Timesteps) -> None:
    """Adds the step of the working environments, and ends the episodes of those that failed."""
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
    """Counts the finished episodes (bool [n]), and starts new ones."""
    which = np.flatnonzero(ended)
    if len(which):
      recent = np.append(state.recent_returns, state.episode_return[which])
      state.recent_returns = recent[-RECENT:]
      state.episodes += len(which)
      self._end(state, which)

  def _end(self, state: ActorState, which: np.ndarray) -> None:
    """Ends the episodes of some environments where they are, and starts new ones."""
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
                      f"without a successful step in between; the last time: {why}")

  def _report_loss(self, error: EnvironmentsLost) -> None:
    self._losses += 1
    if self._losses == _MAX_FAILURES:
      raise RunFailed(f"{error}, {_MAX_FAILURES} times without a successful step in between")
    self._warn(f"{error}; all environments are restarted and continue where they were")
