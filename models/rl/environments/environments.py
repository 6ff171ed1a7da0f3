"""Several environments of one name: Gymnasium's, and the DM Control Suite's through Shimmy."""

import contextlib
import copy
import functools
import os
import signal
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from models.rl.environments import found_by_name, rendering
from replicator import UsageError
from replicator.configuration import operative
from replicator.errors import at_least_one
from replicator.processes import spawning

import gin
import numpy as np

if TYPE_CHECKING:
  from models.rl.environments.wrapper import EnvironmentSettings

  from gymnasium.vector import VectorEnv

_DEFAULT_STEPS = 1000  # All episodes of the DM Control Suite are that long.


class Outcome(NamedTuple):
  """The outcome of a step in n environments.

  The part of an environment that failed has no meaning, and the environment must be reset.
  """

  observation: np.ndarray  # [n, *observation_shape]
  reward: np.ndarray  # float64 [n]
  terminated: np.ndarray  # bool [n], whether the episode has no future.
  truncated: np.ndarray  # bool [n], whether the episode was cut, usually because of its length.
  failures: dict[int, str]  # The error of each environment that failed, by number.


class EnvironmentsLost(Exception):
  """A process with an environment died. All environments must be reset."""


@gin.configurable
class Environments:
  """n environments of one name that step together.

  Actions are vectors of numbers in [-1, 1]; in a discrete environment, the largest number says
  which action is taken. Dictionaries of observations become one vector. Nothing is computed with
  TensorFlow.

  Attributes:
    settings: the settings of each environment.
    name: Gymnasium's id, such as 'Pendulum-v1', or 'dm_control/cartpole-swingup-v0'.
    number: n.
    observation_shape: shape of what the agent observes: [c], or [h, w, c] for images; the last
      axis has `stack` observations.
    observation_dtype: 'float32', or 'uint8' for images.
    stack: how many observations the agent sees together.
    action_size: length of an action; in a discrete environment, the number of actions.
    discrete: whether there is a number of actions to choose from.
    episode_steps: length at which an episode is truncated.
    steps_per_second: how fast a film of it should be.
  """

  def __init__(self, name: str = gin.REQUIRED, number: int = 1,
               vectorization: Literal["sync", "async"] = "sync",
               episode_steps: int | None = None, pixels: int | None = None, stack: int = 1,
               kwargs: Mapping[str, Any] | None = None,
               wrappers: Mapping[str, Mapping[str, Any]] | None = None):
    """Makes one environment to inspect it, and closes it. The first `reset` makes all n.

    Args:
      name: see above; 'module:Id-v0' imports a module that registers the id, or has a function
        `register_envs` that does.
      number: how many environments.
      vectorization: 'sync' steps one after the other; 'async' gives each a process of its own.
        Environments that observe pixels are always 'async'.
      episode_steps: length limit of episodes; by default the registered one, or 1000.
      pixels: side of the square images to observe instead of the environment's own observations.
      stack: how many of the last observations the agent sees together.
      kwargs: arguments of the environment, as `gymnasium.make` takes them.
      wrappers: wrappers of the environment, from the inside out: their arguments but the first by
        'module:Class', such as `{'gymnasium.wrappers:ClipReward': {'min_reward': -1.0}}`.

    Raises:
      UsageError: the environment or a wrapper does not exist, its actions are neither discrete nor
        continuous and bounded, its observations do not make a vector, or a package that it needs is
        not installed.
    """
    at_least_one("Environments", number=number, episode_steps=episode_steps, pixels=pixels,
                 stack=stack)
    if vectorization not in ("sync", "async"):
      raise UsageError(f"Environments.vectorization = {vectorization!r}: write 'sync' or 'async'")
    self.name, self.number, self.stack = name, number, stack
    # OpenGL may crash the training process.
    self.vectorization = "async" if pixels else vectorization
    self._kwargs, self._wrappers = kwargs or {}, wrappers or {}
    found_by_name.check_wrappers(self._wrappers)
    spec = copy.copy(found_by_name.spec_of(name))
    spec.kwargs = {**spec.kwargs, **self._kwargs}
    self.episode_steps: int = episode_steps or spec.max_episode_steps or _DEFAULT_STEPS
    from models.rl.environments.wrapper import EnvironmentSettings, EnvironmentWrapper
    self.settings = EnvironmentSettings(name, spec, self.episode_steps, pixels, stack,
                                        wrappers=tuple(self._wrappers.items()))
    self._make = functools.partial(EnvironmentWrapper, self.settings)
    self._vector: VectorEnv | None = None
    with operative.changed_in_body() as of_gin:
      first = found_by_name.made_first(name, self._make)
    if of_gin:
      raise UsageError(f"Environments.name = '{name}': gin binds {of_gin[0]}, which is called when "
                       "an environment is made, and other processes do not read gin files; write "
                       "its arguments in Environments.kwargs, or those of a wrapper in "
                       "Environments.wrappers")
    self.observation_shape: tuple[int, ...] = first.seen.shape
    self.observation_dtype = first.seen.dtype.name
    self.action_size, self.discrete = first.action_size, first.discrete
    self.steps_per_second = first.steps_per_second
    first.close()

  def like(self, number: int) -> "Environments":
    """`number` new environments of the same kind, 'sync' where possible."""
    return Environments(self.name, number, "sync", self.episode_steps, self.settings.pixels,
                        self.stack, self._kwargs, self._wrappers)

  def reset(self, seeds: Mapping[int, int]) -> tuple[np.ndarray, dict[int, str]]:
    """Begins new episodes in some environments. The others stay where they are.

    Args:
      seeds: the seed of each new episode, by number of the environment.

    Returns:
      observations `[n, *observation_shape]`, of which only those of the reset environments have
      a meaning, and the failures among these, as in `Outcome`.

    Raises:
      EnvironmentsLost: a process with an environment died.
    """
    given: Any = [seeds.get(i) for i in range(self.number)]
    mask = np.array([seed is not None for seed in given])
    with self._lost_on_error():
      observation, info = self._running().reset(seed=given, options={"reset_mask": mask})
    failures = _failures(observation, np.zeros(self.number), info)
    return np.array(observation), {i: why for i, why in failures.items() if mask[i]}

  def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> Outcome:
    """Takes a step in all environments, or in the `active` ones.

    An environment whose episode ended must be reset before the next step.

    Args:
      actions: float32 `[n, action_size]`, in [-1, 1].
      active: bool `[n]`; the other environments stay where they are, with reward 0.

    Raises:
      EnvironmentsLost: a process with an environment died.
    """
    if active is not None:
      actions = np.where(active[:, np.newaxis], actions, np.float32(np.nan))
    with self._lost_on_error():
      observation, reward, terminated, truncated, info = self._running().step(actions)
    return Outcome(np.array(observation), reward, terminated, truncated,
                   _failures(observation, reward, info))

  def close(self) -> None:
    """Closes the environments. The next `reset` makes new ones."""
    vector, self._vector = self._vector, None
    if vector is not None and not vector.closed:
      vector.close(**({"terminate": True} if self.vectorization == "async" else {}))

  def _running(self) -> "VectorEnv":
    if self._vector is None:
      from models.rl.environments.wrapper import make_alone

      from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
      if self.vectorization == "sync":
        self._vector = SyncVectorEnv([self._make] * self.number, copy=False,
                                     autoreset_mode=AutoresetMode.DISABLED)
      else:
        # Spawned, because TensorFlow's threads do not survive a fork.
        with rendering.opengl(_opengl_of(self.settings)), spawning(signal.SIGINT):
          makers = [functools.partial(make_alone, self.settings)] * self.number
          self._vector = AsyncVectorEnv(makers, copy=False, context="spawn",
                                        autoreset_mode=AutoresetMode.DISABLED)
    return self._vector

  @contextlib.contextmanager
  def _lost_on_error(self) -> Iterator[None]:
    try:
      yield
    except (EOFError, OSError) as error:
      if self.vectorization == "sync":
        raise
      vector, self._vector = self._vector, None
      for process in getattr(vector, "processes", []):
        process.kill()
        process.join()
      if vector is not None:
        vector.closed = True
      raise EnvironmentsLost(f"{self.name}: a process with an environment died") from error


def merged(mask: np.ndarray, chosen: np.ndarray, other: np.ndarray) -> np.ndarray:
  """Rows of `chosen` where the mask [n] is True, else rows of `other`: `[n, ...]`."""
  return np.where(mask.reshape([-1] + [1] * (chosen.ndim - 1)), chosen, other)


def _failures(observation: np.ndarray, reward: np.ndarray, info: dict) -> dict[int, str]:
  failures: dict[int, str] = {}
  fit = np.abs(reward) <= np.finfo(np.float32).max  # False for NaN.
  if not fit.all() or not np.isfinite(observation).all():
    for i in range(len(reward)):
      if not np.isfinite(observation[i]).all():
        failures[i] = "its observation is not finite"
      elif not fit[i]:
        failures[i] = f"its reward is {reward[i]}"
  if "error" in info:
    failures.update((int(i), info["error"][i]) for i in np.flatnonzero(info["_error"]))
  return failures


def _opengl_of(settings: "EnvironmentSettings") -> str:
  """The MUJOCO_GL of the processes of environments with these settings."""
  if not settings.pixels:
    return rendering.NOTHING
  rendering.prepare_pygame()
  name = rendering.working_opengl()
  if name == rendering.NOTHING and "MUJOCO_GL" in os.environ:
    raise UsageError(f"MUJOCO_GL = '{os.environ['MUJOCO_GL']}' renders nothing here, and "
                     "Environments.pixels needs to render; unset it, and a working one is found")
  return name
