"""The actor of the training process. It alternates with training, so runs resume exactly."""

import sys
from collections.abc import Callable
from typing import Any

from models.rl.acting.action_noise import ActionNoise, Exploration
from models.rl.acting.environment_loop import ActorState, Adder, EnvironmentLoop
from models.rl.acting.memory import Act, acted, empty
from models.rl.acting.reward_normalizer import RewardNormalizer
from models.rl.acting.saved_state import SavedState
from models.rl.environments.environments import Environments
from models.rl.networks.observation_normalizer import Normalizer
from models.rl.replay.replay import Replay
from models.rl.replay.rollouts import Rollouts
from models.rl.replay.sequences import SequenceReplay
from models.rl.replay.timesteps import ends
from replicator.errors import RunFailed
from replicator.processes import GivenUp, gives_up

import numpy as np
import tensorflow as tf


def warn(line: str) -> None:
  """Prints one line to stderr."""
  print(line, file=sys.stderr, flush=True)


class Actor(tf.Module):
  """An actor that steps all environments together, and inserts the timesteps into the replay.

  All random numbers are functions of the seed and the step. Processes with equal networks thus
  collect equal timesteps, each from its own environments. After a restart, unfinished episodes are
  replayed, see `EnvironmentLoop`.

  Args:
    environments: where it acts; each environment is a stream of the replay.
    replay: receives the timesteps.
    normalizer: receives every observation; or None.
    seed: determines all random numbers.
    exploration: exploration settings; None for those of the gin file.
    warn: called with one line when an environment fails.
    closes: whether `collect` ends by inserting the current observations as ENDs, so that each
      stream ends with one. The episodes continue.
    memory_size: length of the memory of a recurrent policy, see `memory.Act`; 0 for other policies.
    rewards: normalizes the rewards for the replay; or None.

  Attributes:
    kept: a `SavedState` with the fields of `ActorState`.
    environment_steps: int64 [], total steps of all environments, including failed ones, in
      simulator frames, see `Environments.frames_per_step`.
    episodes: int64 [], finished episodes.
  """

  def __init__(self, environments: Environments, replay: Replay | SequenceReplay | Rollouts,
               normalizer: Normalizer | None = None, seed: int = 0,
               exploration: Exploration | None = None, warn: Callable[[str], None] = warn,
               closes: bool = False, memory_size: int = 0,
               rewards: RewardNormalizer | None = None):
    super().__init__()
    exploration = exploration or Exploration()
    self.environments, self.replay, self.normalizer = environments, replay, normalizer
    self.rewards = rewards
    self._random_steps, self._closes = exploration.random_steps, closes
    self._noise = ActionNoise(seed, environments.number, environments.action_size, exploration,
                              environments.max_episode_steps)
    self._adder = Adder(replay, normalizer, warn, rewards)
    self._loop = EnvironmentLoop(environments, self._noise, self._adder, warn)
    self.kept = SavedState(self._loop.start(empty(environments.number, memory_size)),
                           grow=["actions"])
    self.environment_steps, self.episodes = (
        self.kept.fields[name] for name in ("environment_steps", "episodes"))
    self._state: ActorState | None = None  # None: the variables have the state.

  def collect(self, act: Act, until: int, step: int = 0) -> None:
    """Acts until the run has `until` environment steps.

    All environments step together, with all frames of a step, so it may take a few more steps.

    Args:
      act: the policy, see `Act`.
      until: environment steps since the beginning of the run.
      step: the next training step. Only an `ActorPool` uses it.

    Raises:
      RunFailed: an environment fails repeatedly, or the policy's actions are not finite.
      GivenUp: the process was asked to stop some time ago. Nothing is inserted.
    """
    try:
      state = self._current_state()
      acts = state.environment_steps < until
      while state.environment_steps < until:
        if gives_up():
          raise GivenUp(f"{self.environments.name}: the actor is still acting")
        self._loop.advance(state, self._actions(state, act))
    except BaseException:
      self._state = None  # A step may be incomplete, so restart from the variables.
      self._adder.discard()
      raise
    closing = None
    if acts and self._closes:
      closing = ends(np.flatnonzero(state.length), state.observation,
                     self.environments.action_size)
    if self._adder.flush(closing):
      self.kept.write(state, {"actions": self._loop.new_actions()})

  def saved_parts(self) -> dict[str, Any]:
    """Returns the parts that are saved, or that those depend on; the rest is derived from them."""
    return {"kept": self.kept, "replay": self.replay, "normalizer": self.normalizer,
            "rewards": self.rewards, "environments": self.environments}

  def restored_together(self) -> list[Any]:
    """See `replicator.step.variables.together_in`."""
    return [self.replay, self.kept.of_streams(), *([self.rewards.running] if self.rewards else [])]

  def scalars(self) -> dict[str, tf.Tensor]:
    """Returns the progress of acting for logging, []; see `SavedState.scalars`."""
    return self.kept.scalars("environment_steps")

  def close(self) -> None:
    """Closes the environments. The next `collect` starts them again."""
    self.environments.close()
    self._state = None

  def _actions(self, state: ActorState, act: Act) -> np.ndarray:
    step = state.environment_steps // (
        self.environments.number * self.environments.frames_per_step)
    if state.environment_steps < self._random_steps:
      return self.environments.possible(self._noise.random_actions(step), state.observation)
    actions, state.memory = acted(act, self.environments.action_size, state.observation,
                                  self._noise.noise(step), state.memory)
    if not np.isfinite(actions).all():
      raise RunFailed("the policy's actions are not finite at environment step "
                      f"{state.environment_steps}")
    return actions

  def _current_state(self) -> ActorState:
    """Returns the state, rebuilt if a restored checkpoint or a rollback changed the variables."""
    if self._state is None or not self.kept.holds(
        self._state, "environment_steps", "episode", "episode_return"):
      state = self.kept.read()
      self._loop.new_actions()
      self._loop.replay_episodes(state)
      self._state = state
    return self._state
