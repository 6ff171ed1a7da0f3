"""Memory: the state of a recurrent policy in the current episodes, a vector per environment."""

from collections.abc import Callable
from typing import Any

from replicator import UsageError

import keras
import numpy as np

Act = Callable[..., Any]
"""A policy: `observations [n, *shape], noise float32 [n, k] -> actions [n, a]` in [-1, 1].

k is a, unless the agent has a `noise_size`. A recurrent policy also takes its memory `[n, m]` as
its third argument, and returns the actions and the new memory. At the beginning of an episode the
memory is all zeros.
"""


def empty(number: int, size: int) -> np.ndarray | None:
  """Returns the memory at the start of episodes: zeros, floatx `[number, size]`; None if size 0."""
  return np.zeros([number, size], keras.config.floatx()) if size else None


def acted(act: Act, size: int, observations: np.ndarray, noise: np.ndarray,
          memory: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
  """Calls a policy; returns its actions, float32 `[n, a]`, and new memory, floatx `[n, m]` or None.

  `size` is a, and the other arguments are those of `Act`. A policy without memory has None. Raises
  a UsageError if the actions have the wrong shape.
  """
  if memory is None:
    actions = act(observations, noise)
  else:
    actions, memory = act(observations, noise, memory)
    memory = np.array(memory)
  actions = np.asarray(actions, np.float32)
  if actions.shape != (len(observations), size):
    raise UsageError(f"the agent's act returned actions of shape {list(actions.shape)} for "
                     f"{len(observations)} observations; return [n, {size}], numbers in [-1, 1]; a "
                     "discrete environment takes the action with the largest number")
  return actions, memory
