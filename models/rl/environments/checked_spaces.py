"""Checks that an agent can use the spaces of an environment."""

from typing import Any

from models.rl.environments.actions import choices_of
from replicator import UsageError

import gymnasium
import numpy as np
from gymnasium import spaces

_UNBOUNDED = 1e30  # Larger bounds of actions count as unbounded.


def checked(name: str, env: gymnasium.Env) -> spaces.Space:
  """Returns the action space after checking it and the observation space.

  Raises:
    UsageError: an agent cannot use one of them; the message has the environment's `name`.
  """
  space = env.action_space
  if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
    # The largest number of a dtype means unbounded.
    largest = min(float(np.finfo(space.dtype).max), _UNBOUNDED)
    if not (np.abs([space.low, space.high]) < largest).all():
      raise UsageError(f"Environments.name = '{name}': its actions {space} have no bounds, so the "
                       "agent's actions in [-1, 1] cannot be scaled to them; register it with "
                       "bounds, or write a wrapper whose action_space has them")
  elif not choices_of(space):
    raise UsageError(f"Environments.name = '{name}': its actions are {space}; choose an "
                     "environment whose actions are a Box of floats, such as 'Pendulum-v1', or "
                     "Discrete, such as 'CartPole-v1', MultiDiscrete or MultiBinary")
  _refuse_statistics(name, env)
  if not env.observation_space.is_np_flattenable:
    raise UsageError(f"Environments.name = '{name}': its observations {env.observation_space} do "
                     "not make a vector of fixed length; choose a part with a wrapper, see "
                     "Environments.wrappers, or set Environments.pixels")
  return space


def _refuse_statistics(name: str, env: gymnasium.Env) -> None:
  """Raises a UsageError if a wrapper normalizes with its own statistics."""
  for kind, remedy in (
      (gymnasium.wrappers.NormalizeObservation, "Normalizer normalizes observations"),
      (gymnasium.wrappers.NormalizeReward, "make_actor.normalize_rewards = True does that")):
    wrapper: Any = env
    while isinstance(wrapper, gymnasium.Wrapper):
      if isinstance(wrapper, kind):
        raise UsageError(f"Environments.name = '{name}': its wrapper {kind.__name__} keeps "
                         "statistics, which would differ in each environment, each evaluation and "
                         f"after each restart; leave it out: {remedy}, and saves its statistics")
      wrapper = wrapper.env
