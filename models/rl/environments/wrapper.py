"""A single environment as an agent sees it. Vectors of environments consist of these.

It needs Gymnasium but not TensorFlow, because the processes of an 'async' vector import it.
"""

import contextlib
import logging
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from models.rl.environments import action_mask, observations, protocol
from models.rl.environments.action_mask import ActionMask
from models.rl.environments.actions import choices_of, size_of, to_action
from models.rl.environments.checked_spaces import checked
from models.rl.environments.frame import in_colors
from models.rl.environments.frame_skip import frames_per_step
from models.rl.environments.goals import goals_in
from models.rl.environments.timeout import Timeout, TookTooLong
from replicator import UsageError

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec, load_env_creator
from PIL import Image

DEFAULT_FPS = 30.0
"""Steps per second if the environment does not specify it."""


class EnvironmentSettings(NamedTuple):
  """The settings of an environment. They can be sent to another process."""

  name: str  # As the user wrote it.
  spec: EnvSpec  # Gymnasium's description of the environment.
  max_episode_steps: int  # The length at which an episode is truncated.
  pixels: int | None = None  # The side of square images to observe instead of its observations.
  stack: int = 1  # How many of the last observations the agent sees together.
  observation_dtype: Literal["float32", "float64"] = "float32"  # That of vectors.
  render: bool = False  # Whether `render()` gives frames.
  wrappers: tuple[tuple[str, Mapping[str, Any]], ...] = ()  # `module:Class` and its arguments.
  step_timeout: float | None = None  # Maximum seconds of a step or a reset.
  info: tuple[str, ...] = ()  # Names of numbers in its `info` that `step` passes on.
  action_mask: bool = False  # Whether its `info` has a mask of possible actions.


class Facts(NamedTuple):
  """Facts about an environment as an agent sees it."""

  spaces: tuple[spaces.Space, spaces.Space]  # The agent's observations and actions.
  raw_spaces: tuple[spaces.Space, spaces.Space]  # The environment's own.
  observation_shape: tuple[int, ...]
  dtype: str  # Of observations.
  action_size: int
  choices: tuple[int, ...]  # The number of options of each choice; () if it is not discrete.
  masked: bool  # Whether observations end with a mask of the options, see `ActionMask`.
  goals: tuple[int, int, int] | None  # See `goals_in`.
  steps_per_second: float
  frames_per_step: int  # See `frame_skip`.
  note: str  # How observations are converted if that is not obvious.


class EnvironmentWrapper(gymnasium.Wrapper):
  """Wrapper that flattens actions and observations, and reports failures instead of raising.

  Actions are float32 `[a]`, where -1 and 1 are the environment's bounds; for discrete ones see
  `actions.py`. An action of NaN does not step the environment. Observations are float32 or float64
  `[c]`, or uint8 `[h, w, c]` for images, see `observations.view_of`. Stacked observations are
  concatenated along the last axis, newest last; at first, all are the first observation. An action
  mask comes at the end of an observation, see `ActionMask`. If the environment raises an error, the
  reward is NaN and `info["error"]` has the message; the next `reset` makes a new environment.
  `info["numbers"]` has the numbers named in `EnvironmentSettings.info`, as floats. `seen` is the
  newest observation or stack.
  """

  def __init__(self, settings: EnvironmentSettings):
    """Makes the environment.

    Raises:
      UsageError: the agent cannot use its actions or observations, or it takes too long.
    """
    self._settings = settings
    self._limit = Timeout(settings.name, settings.step_timeout)
    try:
      with self._limit:
        super().__init__(_make(settings))
    except TookTooLong as error:
      raise UsageError(f"Environments.name = '{settings.name}' cannot be made: {error}") from error
    space = checked(settings.name, self.env)
    self._raw_action, self._raw_spaces = to_action(space), (self.env.observation_space, space)
    self.action_space = spaces.Box(-1.0, 1.0, [size_of(space)], np.float32)
    self._view = observations.view_of(self.env.observation_space, settings.observation_dtype)
    shape, dtype = self._view.shape, self._view.dtype
    if settings.pixels:
      shape, dtype = (settings.pixels, settings.pixels, 3), np.dtype(np.uint8)
    *others, channels = shape
    self.seen = np.zeros([*others, settings.stack * channels], dtype)
    low, high = (0, 255) if dtype == np.uint8 else (-np.inf, np.inf)
    self.observation_space = spaces.Box(low, high, self.seen.shape, dtype)
    self._broken = False

  def facts(self) -> Facts:
    """Returns facts about the environment.

    Raises:
      UsageError: it renders, as some tasks do, but cannot here; or its action mask is missing or
        does not fit.
    """
    own, actions = self._raw_spaces
    sees_own, masked = not self._settings.pixels, isinstance(self.env, ActionMask)
    if masked or self._settings.spec.id.startswith("dm_control/"):
      problem = self.reset(seed=0)[1].get("error", "")
      if "OpenGL" in problem:
        raise UsageError(problem)
      if masked and problem:
        raise UsageError(f"Environments.action_mask: {self._settings.name}: {problem}")
    return Facts(
        (self.observation_space, self.action_space), self._raw_spaces, self.seen.shape,
        self.seen.dtype.name, size_of(actions), choices_of(actions), masked,
        goals_in(own) if sees_own else None, self._steps_per_second(),
        frames_per_step(self.env), self._view.note if sees_own else "")

  def _steps_per_second(self) -> float:
    """Returns steps per second of simulated time; 30 if the environment does not specify it."""
    if self._settings.spec.id.startswith("dm_control/"):
      # Shimmy's render_fps is a different number.
      return 1.0 / self.env.get_wrapper_attr("dt")
    return self.env.metadata.get("render_fps") or DEFAULT_FPS

  def reset(self, *, seed: int | None = None, options: dict | None = None
            ) -> tuple[np.ndarray, dict]:
    """Starts the episode of a seed; returns its first observation, and the error if one occurs.

    Raises:
      UsageError: its `reset` does not follow Gymnasium.
    """
    try:
      with self._limit:
        if self._broken:
          self.close()
          self.env = _make(self._settings)
        observation = protocol.reset(self.env, self._settings.name, seed)
      self.seen = np.concatenate([self._seen(observation)] * self._settings.stack, -1)
      self._broken = False
    except UsageError:
      raise
    except (Exception, SystemExit, TookTooLong) as error:
      self._broken = True
      return self.seen, {"error": _in_one_line(error)}
    return self.seen, {}

  def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
    """Takes a step; returns observation, reward, terminated, truncated, info.

    Raises:
      UsageError: its `step` does not follow Gymnasium.
    """
    if np.isnan(action[0]):
      return self.seen, 0.0, False, False, {}
    try:
      with self._limit:
        observation, reward, terminated, truncated, info = protocol.step(
            self.env, self._settings.name, self._raw_action(action))
      newest = self._seen(observation)
      self.seen = np.concatenate([self.seen[..., newest.shape[-1]:], newest], -1)
      numbers = {name: _number(info[name], f"info['{name}']")
                 for name in self._settings.info if name in info}
      return (self.seen, _number(reward), bool(terminated), bool(truncated),
              {"numbers": numbers} if numbers else {})
    except UsageError:
      raise
    except (Exception, SystemExit, TookTooLong) as error:
      self._broken = True
      return self.seen, float("nan"), False, True, {"error": _in_one_line(error)}

  def close(self) -> None:
    """Closes the environment, ignoring errors, which cannot affect the run anymore."""
    with contextlib.suppress(Exception, SystemExit, TookTooLong), self._limit:
      self.env.close()

  def _seen(self, observation: Any) -> np.ndarray:
    """Converts a single observation to what the agent sees."""
    if side := self._settings.pixels:
      return frame_of(self.env, side, side)
    return self._view.convert(observation)


def frame_of(env: gymnasium.Env, height: int, width: int | None = None) -> np.ndarray:
  """Renders the current frame of an environment: uint8 `[height, width, 3]`.

  Without a width, the frame keeps its aspect ratio.
  """
  frame = in_colors(env.render())
  if frame.dtype != np.uint8:  # From 0 to 1, as in MinAtar, or to 255.
    frame = observations.as_bytes(frame, 1.0 if frame.max(initial=0) > 1 else 255.0)
  width = width or max(1, round(frame.shape[1] * height / frame.shape[0]))
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
    # Gymnasium's checker would repeat at every step what this wrapper checks.
    env = gymnasium.make(settings.spec, max_episode_steps=settings.max_episode_steps,
                         disable_env_checker=True, **rendering)
    for path, arguments in settings.wrappers:
      wrapper: Any = load_env_creator(path)
      env = wrapper(env=env, **arguments)
    if settings.action_mask or action_mask.is_in(env.observation_space):
      env = ActionMask(env)
      if settings.pixels:
        raise UsageError("Environments.pixels: an image has no place for an action mask; set "
                         "Environments.pixels = None")
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
  """Filters out MuJoCo's deprecation warning about model files, repeated for each environment."""
  return "is deprecated and will be removed" not in record.getMessage()


def _number(value: Any, name: str = "reward") -> float:
  numbers = np.asarray(value, np.float64)
  if numbers.size != 1:
    raise ValueError(f"its {name} is {numbers.size} numbers; it must be one")
  return numbers.item()


def _in_one_line(error: BaseException) -> str:
  text = " ".join(str(error).split())
  if "values to unpack" in text:  # It was written for Gym, Gymnasium's predecessor.
    text += ("; reset must return observation, info, and step must return observation, reward, "
             "terminated, truncated, info")
  return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
