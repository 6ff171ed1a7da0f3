"""Gymnasium's protocol: what `reset` and `step` of an environment take and return.

Many environments were written for Gym, whose `reset` returned just the observation, and `step`
four values. A two-part observation could be mistaken for an observation and an info.
"""

from collections.abc import Mapping
from typing import Any

from replicator import UsageError

import gymnasium

_RESET = ("write `def reset(self, *, seed=None, options=None)`, which calls "
          "`super().reset(seed=seed)` and returns `observation, info`, where info is a dict")
_STEP = "return `observation, reward, terminated, truncated, info`"


def reset(env: gymnasium.Env, name: str, seed: int | None) -> Any:
  """Starts the episode of a seed; returns the first observation.

  Raises:
    UsageError: `reset` does not follow Gymnasium; the message has the environment's `name`.
  """
  try:
    found = env.reset(seed=seed)
  except TypeError as error:
    for argument in ("seed", "options"):
      if f"reset() got an unexpected keyword argument '{argument}'" in str(error):
        raise _not(name, f"its reset takes no {argument}", _RESET) from error
    raise
  if not (isinstance(found, tuple | list) and len(found) == 2 and isinstance(found[1], Mapping)):
    raise _not(name, f"its reset returned {_kind(found)}", _RESET)
  return found[0]


def step(env: gymnasium.Env, name: str, action: Any) -> tuple:
  """Takes a step; returns Gymnasium's five values.

  Raises:
    UsageError: `step` does not follow Gymnasium; the message has the environment's `name`.
  """
  try:
    found = env.step(action)
  except ValueError as error:
    if "values to unpack (expected 5" in str(error):  # By a wrapper.
      raise _not(name, "its step does not return five values", _STEP) from error
    raise
  if not (isinstance(found, tuple | list) and len(found) == 5):
    raise _not(name, f"its step returned {_kind(found)}", _STEP)
  return tuple(found)


def _kind(found: Any) -> str:
  if isinstance(found, tuple | list):
    return f"{len(found)} values, {', '.join(type(each).__name__ for each in found)}"[:100]
  return f"one value, of the type {type(found).__name__}"


def _not(name: str, what: str, remedy: str) -> UsageError:
  return UsageError(f"Environments.name = '{name}': {what}, as in Gym before Gymnasium; {remedy}")
