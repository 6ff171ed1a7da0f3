"""Several copies of an environment of Gymnasium or, through Shimmy, of the DM Control Suite."""

import copy
import functools
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from models.rl.environments import found_by_name, rendering
from models.rl.environments.outcome import Outcome, failures_in, numbers_in
from models.rl.environments.vector import Vector
from replicator import UsageError
from replicator.configuration import operative
from replicator.errors import above_zero, at_least_one

import gin
import numpy as np

if TYPE_CHECKING:
  from models.rl.environments.wrapper import Facts

_DEFAULT_STEPS = 1000  # The length of all episodes in the DM Control Suite.


@gin.configurable
class Environments:
  """n copies of an environment that step together.

  Actions are vectors of numbers in [-1, 1]; in a discrete environment, the largest number of each
  choice selects its option. Observations are uint8 images or one vector, see
  `observations.view_of`. It does not use TensorFlow.

  Attributes:
    settings: the settings of each environment.
    name: Gymnasium's id, such as 'Pendulum-v1', or 'dm_control/cartpole-swingup-v0'.
    number: n.
    observation_shape: shape of what the agent observes: [c], or [h, w, c] for images; the last
      axis has `stack` observations.
    observation_dtype: 'float32' or 'float64', or 'uint8' for images.
    stack: number of observations that the agent sees together.
    action_size: length of an action; in a discrete environment, the total number of options.
    choices: the number of options of each choice of a discrete action: one number for Discrete,
      several for MultiDiscrete and MultiBinary; () for continuous actions.
    discrete: whether there are choices.
    masked: whether the last `action_size` numbers of an observation are a mask: above 0 where an
      option is possible. An impossible action counts as a failure of the environment.
    max_episode_steps: length at which an episode is truncated.
    goals: if flat observations contain goals, the start indices of the achieved and of the desired
      goal, and their length; otherwise None.
    spaces: the environment's original observation and action spaces.
    frames_per_step: simulator frames per action: above 1 if a wrapper or the environment repeats
      actions. Environment steps are counted in frames.
    steps_per_second: steps per second of a film in real time.
    in_processes: whether each environment needs its own process, because it renders with OpenGL.
  """

  def __init__(self, name: str = gin.REQUIRED, number: int = 1,
               vectorization: Literal["sync", "async"] = "sync",
               max_episode_steps: int | None = None, pixels: int | None = None, stack: int = 1,
               kwargs: Mapping[str, Any] | None = None,
               wrappers: Mapping[str, Mapping[str, Any]] | None = None,
               observation_dtype: Literal["float32", "float64"] = "float32",
               step_timeout: float | None = 300.0, action_mask: bool = False):
    """Makes one environment, inspects it and closes it. The first `reset` makes all n.

    Args:
      name: see above; 'module:Id-v0' imports a module that registers the id, or that has a function
        `register_envs` to do so.
      number: number of environments.
      vectorization: 'sync' steps one after the other; 'async' runs each in a separate process.
        Environments that render their observations are always 'async'.
      max_episode_steps: length limit of episodes; by default the registered one, or 1000.
      pixels: side of square images to observe, instead of the environment's own observations.
      stack: number of latest observations that the agent sees together.
      kwargs: arguments of the environment, as for `gymnasium.make`.
      wrappers: wrappers of the environment, from the inside out: 'module:Class' to its arguments
        except the first, such as `{'gymnasium.wrappers:ClipReward': {'min_reward': -1.0}}`.
      observation_dtype: dtype of vector observations before normalization. Large numbers that
        change little, such as a time in seconds, need 'float64'.
      step_timeout: seconds after which a step or reset counts as failed; None for no limit.
      action_mask: whether `info['action_mask']` marks possible actions. The agent then also
        observes it. A mask in a dictionary of observations is always used.

    Raises:
      UsageError: the environment or a wrapper does not exist, its actions are neither discrete nor
        continuous and bounded, its observations cannot be flattened to a vector, or a required
        package is not installed.
    """
    at_least_one("Environments", number=number, max_episode_steps=max_episode_steps, pixels=pixels,
                 stack=stack)
    if step_timeout is not None:
      above_zero("Environments", step_timeout=step_timeout)
    if vectorization not in ("sync", "async"):
      raise UsageError(f"Environments.vectorization = {vectorization!r}: must be 'sync' or 'async'")
    if observation_dtype not in ("float32", "float64"):
      raise UsageError(f"Environments.observation_dtype = {observation_dtype!r}: must be 'float32' "
                       "or 'float64'")
    self.name, self.stack = name, stack
    self._kwargs, self._wrappers = kwargs or {}, wrappers or {}
    found_by_name.check_wrappers(self._wrappers)
    spec = copy.copy(found_by_name.spec_of(name))
    spec.kwargs = {**spec.kwargs, **self._kwargs}
    self.max_episode_steps: int = max_episode_steps or spec.max_episode_steps or _DEFAULT_STEPS
    from models.rl.environments.wrapper import EnvironmentSettings, EnvironmentWrapper
    self.settings = EnvironmentSettings(name, spec, self.max_episode_steps, pixels, stack,
                                        observation_dtype, wrappers=tuple(self._wrappers.items()),
                                        step_timeout=step_timeout, action_mask=action_mask)
    self._make = functools.partial(EnvironmentWrapper, self.settings)
    with operative.changed_in_body() as of_gin:
      facts, renders = self._facts()
    if of_gin:
      raise UsageError(f"Environments.name = '{name}': gin binds {of_gin[0]}, which is called when "
                       "an environment is made, but other processes do not read gin files; set its "
                       "arguments in Environments.kwargs, or those of a wrapper in "
                       "Environments.wrappers")
    if facts.note:
      _say_once(f"note: {name}: {facts.note}")
    if facts.frames_per_step > 1:
      _say_once(f"note: {name}: each action lasts {facts.frames_per_step} frames of the simulator, "
                "and environment steps count frames")
    # OpenGL could crash the training process.
    self.in_processes = bool(pixels) or renders
    self.vectorization = "async" if self.in_processes else vectorization
    self.observation_shape, self.observation_dtype = facts.observation_shape, facts.dtype
    self.action_size, self.choices = facts.action_size, facts.choices
    self.discrete, self.masked = bool(facts.choices), facts.masked
    self.goals = facts.goals if stack == 1 else None
    self.steps_per_second, self.frames_per_step = facts.steps_per_second, facts.frames_per_step
    self._seen_spaces, self.spaces = facts.spaces, facts.raw_spaces
    self._begin(number)

  def like(self, number: int, kwargs: Mapping[str, Any] | None = None,
           wrappers: Mapping[str, Mapping[str, Any]] | None = None,
           info: Sequence[str] = ()) -> "Environments":
    """Makes `number` new environments of the same kind, 'sync' where possible.

    `kwargs` and `wrappers` replace its own; None keeps them. If both are None, no environment is
    made for inspection, because some can exist only once. `info` names numbers in the environment's
    `info` to include in each `Outcome`.
    """
    other = copy.copy(self)
    if kwargs is not None or wrappers is not None:
      other = Environments(
          self.name, number, "sync", self.max_episode_steps, self.settings.pixels, self.stack,
          self._kwargs if kwargs is None else kwargs,
          self._wrappers if wrappers is None else wrappers, self.settings.observation_dtype,
          self.settings.step_timeout, self.settings.action_mask)
    other.settings = other.settings._replace(info=tuple(info))
    other.vectorization = "async" if self.in_processes else "sync"
    other._begin(number)
    return other

  @property
  def wrapped(self) -> str:
    """Description of the wrappers and their arguments, which may differ in an evaluation; or ''."""
    if not self._wrappers:
      return ""
    said = lambda value: getattr(value, "__qualname__", None) or repr(value)
    return " in " + ", ".join(
        f"{path.rpartition(':')[2]}({', '.join(f'{k}={said(v)}' for k, v in passed.items())})"
        for path, passed in self._wrappers.items())

  def saved_parts(self) -> dict[str, Any]:
    """Returns this process's environments by number, whose state a replay may not restore."""
    return {str(i): each.env for i, each in enumerate(self._vector.here)}

  def reset(self, seeds: Mapping[int, int]) -> tuple[np.ndarray, dict[int, str]]:
    """Starts new episodes in some environments. The others do not change.

    Args:
      seeds: the seed of each new episode, by environment number.

    Returns:
      Observations `[n, *observation_shape]`, valid only for the reset environments, and the
      failures among these, as in `Outcome`.

    Raises:
      EnvironmentsLost: a process with an environment died.
    """
    given: Any = [seeds.get(i) for i in range(self.number)]
    mask = np.array([seed is not None for seed in given])
    self._length[mask] = 0
    observation, info = self._vector.call("reset", seed=given, options={"reset_mask": mask})
    failures = failures_in(observation, np.zeros(self.number), info)
    return np.array(observation), {i: why for i, why in failures.items() if mask[i]}

  def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> Outcome:
    """Takes a step in all environments, or in the `active` ones.

    An environment whose episode ended must be reset before the next step.

    Args:
      actions: float32 `[n, action_size]`, in [-1, 1].
      active: bool `[n]`; the other environments do not change, and have reward 0.

    Raises:
      EnvironmentsLost: a process with an environment died.
    """
    if active is not None:
      actions = np.where(active[:, np.newaxis], actions, np.float32(np.nan))
    observation, reward, terminated, truncated, info = self._vector.call("step", actions)
    warnings: tuple[str, ...] = ()
    self._length += active if active is not None else 1
    if self._length.max() >= self.max_episode_steps:
      too_long = (self._length >= self.max_episode_steps) & ~(terminated | truncated)
      too_long &= active if active is not None else True
      truncated, warnings = truncated | too_long, self._told(too_long)
    return Outcome(np.array(observation), reward, terminated, truncated,
                   failures_in(observation, reward, info),
                   numbers_in(info, self.settings.info, self.number), warnings)

  def possible(self, actions: np.ndarray, observations: np.ndarray) -> np.ndarray:
    """Lowers impossible options of actions below all others: `[n, action_size], [n, *shape]`."""
    if not self.masked:
      return actions
    return np.where(observations[:, -self.action_size:] > 0, actions, np.float32(-2))

  def close(self) -> None:
    """Closes the environments. The next `reset` makes new ones."""
    self._vector.close()

  def _facts(self) -> tuple["Facts", bool]:
    """Inspects an environment; returns facts, and whether its observations need OpenGL."""
    try:
      first = found_by_name.made(self.name, self._make)
      facts = first.facts()
    except UsageError as error:
      if not any(word in str(error) for word in ("OpenGL", "MUJOCO_GL")):
        raise
      if rendering.opengl_of_processes() == rendering.NOTHING:
        raise UsageError(f"Environments.name = '{self.name}': its observations are rendered, but "
                         "neither EGL nor OSMesa works here; install one of them") from error
      from models.rl.environments.own_process import facts_of
      return facts_of(self.settings, rendering.opengl_of_processes()), True
    first.close()
    return facts, False

  def _begin(self, number: int) -> None:
    self.number = number
    self._vector = Vector(self.settings, number, self._seen_spaces, self.vectorization == "async",
                          self.in_processes)
    self._length, self._is_told = np.zeros([number], np.int64), False

  def _told(self, too_long: np.ndarray) -> tuple[str, ...]:
    """Returns a warning, once, if episodes had to be cut because nothing else ended them."""
    if self._is_told or not too_long.any():
      return ()
    self._is_told = True
    around = [*self._wrappers, *(each.name for each in self.settings.spec.additional_wrappers)]
    return (f"{self.name}: {' or '.join(around) or 'it'} hides the ends of episodes: after "
            f"{self.max_episode_steps} steps one was neither terminated nor truncated; all are cut "
            "off there",)


@functools.cache
def _say_once(line: str) -> None:
  print(line, file=sys.stderr, flush=True)
