"""The actor of the training process. It acts in turns with training, so runs resume exactly."""

import sys
from collections.abc import Callable

from models.rl.acting.action_noise import ActionNoise, Exploration
from models.rl.acting.environment_loop import ActorState, Adder, EnvironmentLoop
from models.rl.acting.memory import Act, acted, empty
from models.rl.acting.saved_state import SavedState
from models.rl.environments.environments import Environments
from models.rl.networks.observation_normalizer import Normalizer
from models.rl.replay.replay import Replay
from models.rl.replay.rollouts import Rollouts
from models.rl.replay.sequences import SequenceReplay
from models.rl.replay.timesteps import ends
from replicator.errors import RunFailed

import numpy as np
import tensorflow as tf


def warn(line: str) -> None:
  """Prints one line to stderr."""
  print(line, file=sys.stderr, flush=True)


class Actor(tf.Module):
  """Acts in all environments together, and inserts the timesteps into the replay.

  Every random number is a function of the seed and of the step. Processes whose networks are equal
  therefore collect equal timesteps, each from environments of its own. After a restart the
  unfinished episodes are replayed, see `EnvironmentLoop`.

  Args:
    environments: where it acts; each environment is a stream of the replay.
    replay: receives the timesteps.
    normalizer: receives every observation; or None.
    seed: determines all random numbers.
    exploration: the noise, and how long actions are random; None for that of the gin file.
    warn: called with one line when an environment fails.
    closes: whether the replay receives the present observations as ENDs at the end of `collect`, so
      that each stream ends with one. The episodes go on.
    memory_size: length of the memory of a recurrent policy, see `memory.Act`; 0 for other policies.

  Attributes:
    kept: a `SavedState` with the fields of `ActorState`.
    environment_steps: int64 [], steps of all environments together, failed ones included.
    episodes: int64 [], finished episodes.
  """

  def __init__(self, environments: Environments, replay: Replay | SequenceReplay | Rollouts,
               normalizer: Normalizer | None = None, seed: int = 0,
               exploration: Exploration | None = None, warn: Callable[[str], None] = warn,
               closes: bool = False, memory_size: int = 0):
    super().__init__()
    exploration = exploration or Exploration()
    self.environments, self.replay, self.normalizer = environments, replay, normalizer
    self._random_steps, self._closes = exploration.random_steps, closes
    self._noise = ActionNoise(seed, environments.number, environments.action_size, exploration,
                              environments.episode_steps)
    self._adder = Adder(replay, normalizer)
    self._loop = EnvironmentLoop(environments, self._noise, self._adder, warn)
    self.kept = SavedState(self._loop.start(empty(environments.number, memory_size)))
    self.environment_steps, self.episodes = (
        self.kept.fields[name] for name in ("environment_steps", "episodes"))
    self._state: ActorState | None = None  # None: the variables have the state.

  def collect(self, act: Act, until: int, step: int = 0) -> None:
    """Acts until the run has `until` environment steps.

    All n environments take each step together, so there may be up to n - 1 steps more.

    Args:
      act: the policy, see `Act`.
      until: environment steps since the beginning of the run.
      step: the training step that comes next. Only an `ActorPool` uses it.

    Raises:
      RunFailed: an environment fails again and again, or the policy's actions are not finite.
    """
    try:
      state = self._current_state()
      acts = state.environment_steps < until
      while state.environment_steps < until:
        self._loop.advance(state, self._actions(state, act))
    except BaseException:
      self._state = None  # A step may be half done, so start again from the variables.
      self._adder.discard()
      raise
    if acts and self._closes:
      self._adder.add(ends(np.flatnonzero(state.length), state.observation,
                           self.environments.action_size))
    if self._adder.flush():
      self.kept.write(state, {"actions": self._loop.new_actions})
      self._loop.new_actions[:] = False

  def scalars(self) -> dict[str, tf.Tensor]:
    """Progress of acting for a step to log, []; see `SavedState.scalars`."""
    return self.kept.scalars("environment_steps")

  def close(self) -> None:
    """Closes the environments. The next `collect` starts them again."""
    self.environments.close()
    self._state = None

  def _actions(self, state: ActorState, act: Act) -> np.ndarray:
    step = state.environment_steps // self.environments.number
    if state.environment_steps < self._random_steps:
      return self._noise.random_actions(step)
    actions, state.memory = acted(act, self.environments.action_size, state.observation,
                                  self._noise.noise(step), state.memory)
    if not np.isfinite(actions).all():
      raise RunFailed("the policy's actions are not finite at environment step "
                      f"{state.environment_steps}")
    return actions

  def _current_state(self) -> ActorState:
    """The state in the variables, which a restored checkpoint or a rollback may have changed."""
    if self._state is None or not self.kept.holds(
        self._state, "environment_steps", "episode", "episode_return"):
      state = self.kept.read()
      self._loop.new_actions[:] = False
      self._loop.replay_episodes(state)
      self._state = state
    return self._state
