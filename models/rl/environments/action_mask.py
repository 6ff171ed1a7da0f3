"""Masks of possible actions, appended to what an agent observes."""

from typing import Any

from models.rl.environments.actions import choices_of
from replicator import UsageError

import gymnasium
import numpy as np
from gymnasium import spaces

KEY = "action_mask"
"""The name of a mask in a dictionary of observations, as in PettingZoo, or in `info`."""


def is_in(space: spaces.Space) -> bool:
  """Returns whether a space of observations has a mask."""
  return isinstance(space, spaces.Dict) and KEY in space.spaces


class ActionMask(gymnasium.Wrapper):
  """Wrapper whose observations are pairs: the observation without its mask, and the mask.

  A mask, int8 `[k]`, has a number for each option of each choice, above 0 if the option is
  possible. A tuple of masks, one for each choice, is concatenated.

  Raises:
    UsageError: the actions are not discrete, or the observations are images.
  """

  def __init__(self, env: gymnasium.Env):
    super().__init__(env)
    self._choices = choices_of(env.action_space)
    if not self._choices:
      raise UsageError(f"Environments.{KEY}: the actions of {_name(env)} are {env.action_space}; "
                       "masks are for discrete ones")
    space: Any = env.observation_space
    self._is_observed = is_in(space)
    if self._is_observed:
      others = {name: part for name, part in space.spaces.items() if name != KEY}
      space = spaces.Dict(others) if len(others) > 1 else next(iter(others.values()))
      self._names = list(others)
    if isinstance(space, spaces.Box) and len(space.shape) == 3 and space.dtype == np.uint8:
      raise UsageError(f"Environments.{KEY}: {_name(env)} observes images, which have no place for "
                       "a mask; make the observation a vector with a wrapper, see "
                       "Environments.wrappers")
    self.observation_space = spaces.Tuple([
        space, spaces.Box(0, 1, [sum(self._choices)], np.int8)])
    # Index of each choice's first option in the mask.
    self._first = np.cumsum([0, *self._choices[:-1]])
    self._start = getattr(env.action_space, "start", 0)

  def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
    """See `gymnasium.Env.reset`; raises a ValueError if the mask is missing or does not fit."""
    observation, info = self.env.reset(**options)
    return self._seen(observation, info), info

  def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
    """See `gymnasium.Env.step`; raises a ValueError if the action is impossible."""
    taken = np.ravel(action - self._start).astype(int) + self._first
    if not self.mask[taken].all():
      raise ValueError(f"the agent took action {action}, which its {KEY} rules out")
    observation, reward, terminated, truncated, info = self.env.step(action)
    return self._seen(observation, info), reward, terminated, truncated, info

  def _seen(self, observation: Any, info: dict[str, Any]) -> tuple[Any, np.ndarray]:
    if self._is_observed:
      mask = observation[KEY]
      observation = {name: observation[name] for name in self._names}
      observation = observation if len(self._names) > 1 else observation[self._names[0]]
    elif KEY in info:
      mask = info[KEY]
    else:
      raise ValueError(f"there is no info['{KEY}']")
    if isinstance(mask, tuple):
      mask = np.concatenate(mask)
    self.mask = (np.ravel(mask) > 0).astype(np.int8)
    if self.mask.size != sum(self._choices):
      raise ValueError(f"its {KEY} has {self.mask.size} numbers, but its actions have "
                       f"{sum(self._choices)} options")
    return observation, self.mask


def _name(env: gymnasium.Env) -> str:
  return env.spec.id if env.spec else str(env)
