"""A single environment as an agent sees it. Vectors of environments are made of these.

Needs Gymnasium, and no TensorFlow: the processes of an 'async' vector import this module.
"""

import contextlib
import logging
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from replicator import UsageError

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec, load_env_creator
from PIL import Image

DEFAULT_FPS = 30.0
"""Steps in a second of a world that does not say."""


class EnvironmentSettings(NamedTuple):
  """The settings that make an environment. They can be sent to another process."""

  name: str  # As the user wrote it.
  spec: EnvSpec  # Gymnasium's description of the environment.
  episode_steps: int  # The length at which an episode is truncated.
  pixels: int | None = None  # The side of square images to observe in place of its observations.
  stack: int = 1  # How many of the last observations the agent sees together.
  render: bool = False  # Whether `render()` gives frames.
  wrappers: tuple[tuple[str, Mapping[str, Any]], ...] = ()  # `module:Class` and its arguments.


class EnvironmentWrapper(gymnasium.Wrapper):
  """Makes actions and observations flat, and reports failures instead of raising.

  Actions are float32 `[a]`, whose -1 and 1 are the bounds of the environment. If it is `discrete`,
  there are a actions, and the place of the largest number is the one that is taken. An action of
  NaN leaves the environment as it is. Observations are float32 `[c]`, or uint8 `[h, w, c]` for
  images, also for those of bool; a stack of the last ones lies along the last axis, the newest at
  its end, and begins with the first one repeated. When the environment raises an error, the reward
  is NaN and `info["error"]` has the message; the next `reset` makes a new environment.
  `action_size` is a, and `seen` the newest observation or stack.
  """

  def __init__(self, settings: EnvironmentSettings):
    """Makes the environment.

    Raises:
      UsageError: the agent cannot use its actions or observations.
    """
    self._settings = settings
    super().__init__(_make(settings))
    space = _checked(settings.name, self.env)
    self.discrete = isinstance(space, spaces.Discrete)
    self._raw_action: Callable[[np.ndarray], Any] = (
        _to_discrete(space) if isinstance(space, spaces.Discrete) else _to_box(space))
    self.action_size = int(space.n) if isinstance(space, spaces.Discrete) else space.low.size
    self._raw_space = self.env.observation_space
    self.action_space = spaces.Box(-1.0, 1.0, [self.action_size], np.float32)
    self.observation_space = _seen_space(settings, self._raw_space)
    *others, channels = self.observation_space.shape
    self._single_shape = (*others, channels // settings.stack)
    self.seen = np.zeros(self.observation_space.shape, self.observation_space.dtype)
    self._broken = False

  @property
  def steps_per_second(self) -> float:
    """Decisions in a second of the environment's world; 30 steps if it does not say."""
    if self._settings.spec.id.startswith("dm_control/"):
      # Shimmy has another number as render_fps.
      return 1.0 / self.env.get_wrapper_attr("dt")
    return self.env.metadata.get("render_fps") or DEFAULT_FPS

  def reset(self, *, seed: int | None = None, options: dict | None = None
            ) -> tuple[np.ndarray, dict]:
    """Begins the episode of a seed; returns its first observation, and the error if one occurs."""
    try:
      if self._broken:
        with contextlib.suppress(Exception):
          self.env.close()
        self.env = _make(self._settings)
      observation, _ = self.env.reset(seed=seed)
      self.seen = np.concatenate([self._seen(observation)] * self._settings.stack, -1)
      self._broken = False
    except (Exception, SystemExit) as error:
      self._broken = True
      return self.seen, {"error": _in_one_line(error)}
    return self.seen, {}

  def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
    """Returns Gymnasium's five: observation, reward, terminated, truncated, info."""
    if np.isnan(action[0]):
      return self.seen, 0.0, False, False, {}
    try:
      observation, reward, terminated, truncated, _ = self.env.step(self._raw_action(action))
      newest = self._seen(observation)
      self.seen = np.concatenate([self.seen[..., newest.shape[-1]:], newest], -1)
      return self.seen, _number(reward), bool(terminated), bool(truncated), {}
    except (Exception, SystemExit) as error:
      self._broken = True
      return self.seen, float("nan"), False, True, {"error": _in_one_line(error)}

  def _seen(self, observation: Any) -> np.ndarray:
    """A single observation as the agent sees it."""
    if self._settings.pixels:
      return frame_of(self.env, self._settings.pixels, self._settings.pixels)
    is_image = self.observation_space.dtype == np.uint8
    if not _holds(self._raw_space, observation):
      raise ValueError(f"its observation, {' '.join(str(observation).split())[:60]}, is not in its "
                       f"observation_space, {self._raw_space}")
    seen = np.asarray(observation if is_image else spaces.flatten(self._raw_space, observation))
    if seen.shape != self._single_shape or (is_image and seen.dtype != self._raw_space.dtype):
      raise ValueError(f"its observation, {seen.dtype} {list(seen.shape)}, is not in its "
                       f"observation_space, {self._raw_space}")
    with np.errstate(over="ignore"):  # Infinite numbers are reported as a failure.
      return seen.astype(self.observation_space.dtype, copy=False)


def _holds(space: spaces.Space, observation: Any) -> bool:
  """Whether an observation keeps its numbers in the dtype of its space, which may be nested.

  Floats may leave their bounds.
  """
  if isinstance(space, spaces.Dict):
    return all(_holds(part, observation[name]) for name, part in space.items())
  if isinstance(space, spaces.Tuple):
    return all(map(_holds, space, observation))
  if not isinstance(space, spaces.Box):
    return space.contains(observation)
  if space.dtype.kind == "f":
    return True
  numbers = np.asarray(observation)
  if numbers.dtype == space.dtype:
    return True
  with np.errstate(invalid="ignore"):  # NaN is no integer.
    return np.array_equal(numbers.astype(space.dtype), numbers)


def _to_box(space: spaces.Box) -> Callable[[np.ndarray], np.ndarray]:
  """Scales actions in [-1, 1] to the bounds of the environment."""
  low, high = space.low.astype(np.float64), space.high.astype(np.float64)
  middle, half = (high + low) / 2, (high - low) / 2

  def scaled(action: np.ndarray) -> np.ndarray:
    # Rounding must not leave the bounds, which some environments check.
    inside = np.minimum(np.maximum(middle + half * action.reshape(space.shape), low), high)
    return inside.astype(space.dtype)

  return scaled


def _to_discrete(space: spaces.Discrete) -> Callable[[np.ndarray], np.integer]:
  """Says the action whose number is the largest."""
  return lambda action: space.start + np.argmax(action)


def make_alone(settings: EnvironmentSettings) -> EnvironmentWrapper:
  """Makes the environment in a process of its own.

  That process prints nothing. Otherwise it would print a traceback when the trainer is gone.
  """
  if multiprocessing.parent_process() is not None:
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
  return EnvironmentWrapper(settings)


def frame_of(env: gymnasium.Env, height: int, width: int | None = None) -> np.ndarray:
  """Renders an environment as it is now: uint8 `[height, width, 3]`.

  Without a width the frame keeps its aspect ratio.
  """
  frame = np.asarray(env.render())
  if frame.dtype.kind == "f":  # MinAtar's, from 0 to 1.
    frame = 255 * frame
  frame = frame.astype(np.uint8)
  width = width or round(frame.shape[1] * height / frame.shape[0])
  if frame.shape[:2] == (height, width):
    return frame
  return np.asarray(Image.fromarray(frame).resize((width, height), Image.Resampling.BOX))


def _make(settings: EnvironmentSettings) -> gymnasium.Env:
  rendering: dict[str, Any] = {}
  if settings.render or settings.pixels:
    rendering["render_mode"] = "rgb_array"
    if settings.spec.id.startswith("dm_control/"):
      size = {"height": settings.pixels, "width": settings.pixels} if settings.pixels else {}
      # The environment's own cameras follow the body; the default one does not move.
      rendering["render_kwargs"] = {"camera_id": 0, **size}
  if "mujoco" in str(settings.spec.entry_point):
    _log_mujoco_warnings()
  log = logging.getLogger("absl")  # dm_control logs there.
  log.addFilter(_is_news)
  try:
    # Gymnasium's checker would look at every step for what this wrapper checks.
    env = gymnasium.make(settings.spec, max_episode_steps=settings.episode_steps,
                         disable_env_checker=True, **rendering)
    for path, arguments in settings.wrappers:
      wrapper: Any = load_env_creator(path)
      env = wrapper(env=env, **arguments)
    return env
  finally:
    log.removeFilter(_is_news)


def _log_mujoco_warnings() -> None:
  """Sends MuJoCo's warnings to `logging`; by default they go to a file in the current folder."""
  import mujoco
  if mujoco.get_mju_user_warning() is None:
    log = logging.getLogger("mujoco")
    log.addFilter(_is_news)
    mujoco.set_mju_user_warning(log.warning)


def _is_news(record: logging.LogRecord) -> bool:
  """Whether a record is not MuJoCo's complaint about model files, one for each environment."""
  return "is deprecated and will be removed" not in record.getMessage()


def _checked(name: str, env: gymnasium.Env) -> spaces.Box | spaces.Discrete:
  """The action space, if an agent can use it and the observations."""
  space = env.action_space
  if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
    if not np.isfinite([space.low, space.high]).all():
      raise UsageError(f"Environments.name = '{name}': its actions {space} have no bounds, so the "
                       "agent's actions in [-1, 1] cannot be scaled to them; register it with "
                       "bounds")
  elif not isinstance(space, spaces.Discrete):
    raise UsageError(f"Environments.name = '{name}': its actions are {space}; choose an "
                     "environment whose actions are a Box of floats, such as 'Pendulum-v1', or "
                     "Discrete, such as 'CartPole-v1'")
  if not env.observation_space.is_np_flattenable:
    raise UsageError(f"Environments.name = '{name}': its observations {env.observation_space} do "
                     "not make a vector of fixed length; select from them with a wrapper, see "
                     "Environments.wrappers, or set Environments.pixels")
  return space


def _seen_space(settings: EnvironmentSettings, space: spaces.Space) -> spaces.Box:
  k = settings.stack
  if settings.pixels:
    return spaces.Box(0, 255, [settings.pixels, settings.pixels, 3 * k], np.uint8)
  if isinstance(space, spaces.Box) and space.dtype in (np.uint8, bool) and len(space.shape) == 3:
    return spaces.Box(0, 255, [*space.shape[:2], k * space.shape[2]], np.uint8)
  return spaces.Box(-np.inf, np.inf, [k * spaces.flatdim(space)], np.float32)


def _number(reward: Any) -> float:
  numbers = np.asarray(reward, np.float64)
  if numbers.size != 1:
    raise ValueError(f"its reward is {numbers.size} numbers; it must be one")
  return numbers.item()


def _in_one_line(error: BaseException) -> str:
  text = " ".join(str(error).split())
  if "values to unpack" in text:  # It was written for Gym, which Gymnasium followed.
    text += ("; reset must return observation, info, and step must return observation, reward, "
             "terminated, truncated, info")
  return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
