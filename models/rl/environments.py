"""Environments by name, several at once: Gymnasium's, and the DM Control Suite's through Shimmy."""

import contextlib
import functools
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import gin
import numpy as np

from models.rl import rendering
from replicator.errors import UsageError, first_line, nearest

if TYPE_CHECKING:
  from gymnasium.envs.registration import EnvSpec
  from gymnasium.vector import VectorEnv

  from models.rl.environment_wrapper import EnvironmentWrapper, EnvironmentSettings

_STEPS_WHERE_NONE_ARE_GIVEN = 1000  # All episodes of the DM Control Suite are that long.
_INSTALL = "pip install -e '.[rl]'"


class Outcome(NamedTuple):
  """What a step in n environments led to.

  Attributes:
    observation: `[n, *observation_shape]`.
    reward: float64 `[n]`.
    terminated: bool `[n]`, there is nothing after.
    truncated: bool `[n]`, the episode was cut, by its length in most cases.
    failures: by number, why an environment's part is worth nothing; it must be reset.
  """

  observation: np.ndarray
  reward: np.ndarray
  terminated: np.ndarray
  truncated: np.ndarray
  failures: dict[int, str]


class EnvironmentsLost(Exception):
  """A process with an environment is gone; all environments must be reset."""


@gin.configurable
class Environments:
  """n environments of one name, stepped together; actions are in [-1, 1].

  Dictionaries of observations become one vector. Nothing is computed with TensorFlow.

  Attributes:
    settings: of each of them.
    name: Gymnasium's id, such as 'Pendulum-v1', or 'dm_control/cartpole-swingup-v0'.
    number: n.
    observation_shape: of one environment: [c], or [h, w, c] of images.
    observation_dtype: 'float32', or 'uint8' of images.
    action_size: length of an action.
    episode_steps: after which an episode is cut.
  """

  def __init__(self, name: str = gin.REQUIRED, number: int = 1,
               vectorization: Literal["sync", "async"] = "sync",
               episode_steps: int | None = None, pixels: int | None = None):
    """Makes one of them, to look at it; the others when they are first reset.

    Args:
      name: see above; 'module:Id-v0' imports a module that registers the id.
      number: how many.
      vectorization: 'sync': one after the other; 'async': each in a process of its own, as
        those that observe pixels always are.
      episode_steps: at most; default: those that the environment is registered with, else 1000.
      pixels: side of the square images to observe instead of the environment's own observations.

    Raises:
      UsageError: no such environment, one without continuous actions in bounds or with
        observations that make no vector; something that it needs is not installed.
    """
    _check_positive("number", number)
    _check_positive("episode_steps", episode_steps)
    _check_positive("pixels", pixels)
    if vectorization not in ("sync", "async"):
      raise UsageError(f"Environments.vectorization = {vectorization!r}: write 'sync' or 'async'")
    self.name, self.number = name, number
    # OpenGL in the process that trains may crash it.
    self.vectorization = "async" if pixels else vectorization
    spec = _find(name)
    self.episode_steps: int = (episode_steps or spec.max_episode_steps
                               or _STEPS_WHERE_NONE_ARE_GIVEN)
    from models.rl.environment_wrapper import EnvironmentWrapper, EnvironmentSettings
    self.settings = EnvironmentSettings(name, spec, self.episode_steps, pixels)
    self._make = functools.partial(EnvironmentWrapper, self.settings)
    self._vector: VectorEnv | None = None
    first = _first(name, self._make)
    self.observation_shape: tuple[int, ...] = first.seen.shape
    self.observation_dtype = first.seen.dtype.name
    self.action_size = first.action_size
    first.close()

  def like(self, number: int) -> "Environments":
    """As many others of the same kind; one after the other, where that is possible."""
    return Environments(self.name, number, "sync", self.episode_steps, self.settings.pixels)

  def reset(self, seeds: Mapping[int, int]) -> tuple[np.ndarray, dict[int, str]]:
    """Begins new episodes in some environments; the others stay where they are.

    Args:
      seeds: by number of the environment.

    Returns:
      `[n, *observation_shape]`, in which only those of `seeds` mean anything, and of these the
      failures, as in `Outcome`.
    """
    given: Any = [seeds.get(i) for i in range(self.number)]
    mask = np.array([seed is not None for seed in given])
    with self._lost_on_error():
      observation, info = self._running().reset(seed=given, options={"reset_mask": mask})
    failures = _failures(observation, np.zeros(self.number), info)
    return np.array(observation), {i: why for i, why in failures.items() if mask[i]}

  def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> Outcome:
    """Takes a step in all environments, or in the `active` ones.

    An environment whose episode ended must be reset before the next step of any.

    Args:
      actions: float32 `[n, action_size]`, in [-1, 1].
      active: bool `[n]`; the others stay where they are, with reward 0.

    Raises:
      EnvironmentsLost: see there.
    """
    if active is not None:
      actions = np.where(active[:, np.newaxis], actions, np.float32(np.nan))
    with self._lost_on_error():
      observation, reward, terminated, truncated, info = self._running().step(actions)
    return Outcome(np.array(observation), reward, terminated, truncated,
                   _failures(observation, reward, info))

  def close(self) -> None:
    """Ends them; the next reset begins with new ones."""
    vector, self._vector = self._vector, None
    if vector is not None and not vector.closed:
      vector.close(**({"terminate": True} if self.vectorization == "async" else {}))

  def _running(self) -> "VectorEnv":
    if self._vector is None:
      from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

      from models.rl.environment_wrapper import make_alone
      if self.vectorization == "sync":
        self._vector = SyncVectorEnv([self._make] * self.number, copy=False,
                                     autoreset_mode=AutoresetMode.DISABLED)
      else:
        # Not forked: TensorFlow's threads do not survive that.
        with (rendering.opengl(_opengl_of(self.settings)), rendering.interrupts_withheld(),
              rendering.main_module_hidden()):
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
      raise EnvironmentsLost(f"{self.name}: a process with an environment is gone") from error


def merged(mask: np.ndarray, chosen: np.ndarray, other: np.ndarray) -> np.ndarray:
  """Of `[n, ...]`, the rows of `chosen` where the mask [n] is True, else those of `other`."""
  return np.where(mask.reshape([-1] + [1] * (chosen.ndim - 1)), chosen, other)


def _failures(observation: np.ndarray, reward: np.ndarray, info: dict) -> dict[int, str]:
  failures: dict[int, str] = {}
  fit = np.abs(reward) <= np.finfo(np.float32).max  # Not so if it is NaN.
  if not fit.all() or not np.isfinite(observation).all():
    for i in range(len(reward)):
      if not np.isfinite(observation[i]).all():
        failures[i] = "its observation is not finite"
      elif not fit[i]:
        failures[i] = f"its reward is {reward[i]}"
  if "error" in info:
    failures.update((int(i), info["error"][i]) for i in np.flatnonzero(info["_error"]))
  return failures


def _check_positive(setting: str, value: int | None) -> None:
  if value is not None and value < 1:
    raise UsageError(f"Environments.{setting} = {value}: must be at least 1")


def _opengl_of(settings: "EnvironmentSettings") -> str:
  """The MUJOCO_GL of its processes."""
  if not settings.pixels:
    return rendering.NOTHING
  rendering.prepare_pygame()
  name = rendering.working_opengl()
  if name == rendering.NOTHING and "MUJOCO_GL" in os.environ:
    raise UsageError(f"MUJOCO_GL = '{os.environ['MUJOCO_GL']}' draws nothing here, and "
                     "Environments.pixels needs it; unset it, and what works is found")
  return name


def _find(name: str) -> "EnvSpec":
  """What Gymnasium, and with it Shimmy, knows of a name."""
  registry = _import("gymnasium", name).envs.registration.registry
  module, _, identity = name.rpartition(":")
  of_dm_control = identity.startswith("dm_control/")
  for needed in ["dm_control", "shimmy"] if of_dm_control else []:
    _import(needed, name)
  if module:
    _import(module, name)
  if identity not in registry:
    known = [known for known in registry if known.startswith("dm_control/") == of_dm_control]
    raise UsageError(f"Environments.name = '{name}': there is no such environment."
                     f"{nearest(identity, known) or ' gymnasium.pprint_registry() lists all.'}")
  return registry[identity]


def _import(module: str, name: str) -> Any:
  try:
    with rendering.opengl(rendering.NOTHING):
      return importlib.import_module(module)
  except ImportError as error:
    raise UsageError(f"Environments.name = '{name}' needs {error.name or module}, which is not "
                     f"installed; {_INSTALL}") from error


def _first(name: str, make: "Callable[[], EnvironmentWrapper]") -> "EnvironmentWrapper":
  """An environment of a known name."""
  try:
    with rendering.opengl(rendering.NOTHING):  # In case it imports MuJoCo.
      return make()
  except UsageError:
    raise
  except Exception as error:
    missing = [package for package in ("mujoco", "pygame") if package in str(error).lower()]
    if missing and (isinstance(error, ImportError)
                    or type(error).__name__ == "DependencyNotInstalled"):  # Gymnasium's.
      raise UsageError(f"Environments.name = '{name}' needs {missing[0]}, which is not installed; "
                       f"{_INSTALL}") from error
    raise UsageError(f"Environments.name = '{name}' cannot be made: {type(error).__name__}: "
                     f"{first_line(error)}") from error
