"""Acting in this process, in turns with training, so that a run can be resumed exactly."""

import collections
import sys
from collections.abc import Callable
from typing import Any

import gin
import keras
import numpy as np
import tensorflow as tf

from models.rl.action_noise import ActionNoise
from models.rl.environments import Environments
from models.rl.environment_loop import EnvironmentLoop, ActorState
from models.rl.saved_state import SavedState, mean_return
from models.rl.normalization import Normalizer
from models.rl.replay import Replay, Timesteps
from replicator.errors import RunFailed

Act = Callable[[np.ndarray, np.ndarray], Any]


def warn(line: str) -> None:
  """Tells one line on the standard error."""
  print(line, file=sys.stderr, flush=True)


@gin.configurable(denylist=["environments", "replay", "normalizer", "seed", "warn"])
class Actor(tf.Module):
  """Acts in all environments together, and inserts what it saw into the replay.

  Every random number is a function of the seed and of the step. So processes whose networks are
  equal get equal rows, each from environments of its own. After a restart the present episodes are
  played again, see `EnvironmentLoop`.

  Args:
    environments: to act in; each is a stream of the replay.
    replay: gets the rows.
    normalizer: gets every observation; or None.
    seed: of all that is random here.
    random_steps: environment steps of uniformly random actions to begin with.
    warn: is called with one line when an environment fails.

  Attributes:
    kept: its `episodes.ActorState`.
    environment_steps: int64 [], of all environments together; failed ones count.
    episodes: int64 [], that were finished.
  """

  def __init__(self, environments: Environments, replay: Replay,
               normalizer: Normalizer | None = None, seed: int = 0, random_steps: int = 1000,
               warn: Callable[[str], None] = warn):
    super().__init__()
    self.environments, self.replay, self.normalizer = environments, replay, normalizer
    self._random_steps = random_steps
    self._draws = ActionNoise(seed, environments.number, environments.action_size)
    self._episodes = EnvironmentLoop(environments, self._draws, warn)
    self.kept = SavedState(self._episodes.start())
    self.environment_steps, self.episodes = (
        self.kept.fields[name] for name in ("environment_steps", "episodes"))
    self._state: ActorState | None = None  # None: what is kept counts.

  @property
  def episode_return(self) -> tf.Tensor:
    """Floating [], mean of the last 10 finished episodes, 0 before there is one."""
    return mean_return(self.kept.fields["recent_returns"], self.episodes)

  def collect(self, act: Act, until: int, step: int = 0) -> None:
    """Acts until there were so many environment steps since the beginning of the run.

    All environments take each step together, so there may be up to n - 1 more.

    Args:
      act: `observations [n, *shape], noise float32 [n, a] -> [n, a]` in [-1, 1].
      until: environment steps.
      step: the training step that comes next, which means something to an `ActorPool`.

    Raises:
      RunFailed: an environment does nothing but fail; the policy's actions are not finite.
    """
    rows = self._episodes.rows
    try:
      state = self._present_state()
      while state.environment_steps < until:
        self._episodes.advance(state, self._actions(state, act))
    except BaseException:
      self._state = None  # Half a step was taken.
      rows.clear()
      raise
    if rows:
      deliver(rows, self.replay, self.normalizer)
      self.kept.write(state, {"actions": self._episodes.new_actions})
      self._episodes.new_actions[:] = False

  def scalars(self) -> dict[str, tf.Tensor]:
    """How acting goes, for a step to log: floating []."""
    return {"environment_steps": tf.cast(self.environment_steps, keras.config.floatx()),
            "episode_return": self.episode_return}

  def close(self) -> None:
    """Ends the environments."""
    self.environments.close()
    self._state = None

  def _actions(self, state: ActorState, act: Act) -> np.ndarray:
    step = state.environment_steps // self.environments.number
    if state.environment_steps < self._random_steps:
      return self._draws.random_actions(step)
    actions = np.asarray(act(state.observation, self._draws.noise(step)), np.float32)
    if not np.isfinite(actions).all():
      raise RunFailed("the policy's actions are not finite at environment step "
                      f"{state.environment_steps}")
    return actions

  def _present_state(self) -> ActorState:
    """What is kept, which a restored checkpoint or a step back may have changed."""
    if self._state is None or not self.kept.holds(
        self._state, "environment_steps", "episode", "episode_return"):
      state = self.kept.read()
      self._episodes.new_actions[:] = False
      self._episodes.play_again(state)
      self._state = state
    return self._state


def deliver(parts: collections.deque[Timesteps], replay: Replay, normalizer: Normalizer | None) -> None:
  """Inserts rows that came in parts; takes the parts away."""
  rows = Timesteps(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
  parts.clear()
  replay.insert(rows)
  if normalizer is not None:
    normalizer.update(rows.observation)
