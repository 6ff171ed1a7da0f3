"""Memory: what a recurrent policy keeps of the present episodes, a vector for each environment."""

from collections.abc import Callable
from typing import Any

from replicator import UsageError

import keras
import numpy as np

Act = Callable[..., Any]
"""A policy: `observations [n, *shape], noise float32 [n, k] -> actions [n, a]` in [-1, 1].

k is a, if the agent has no other `noise_size`. A recurrent policy also takes its memory `[n, m]`
after the noise, and returns the actions and what the memory is after them. At the beginning of an
episode the memory is all zeros.
"""


def empty(number: int, size: int) -> np.ndarray | None:
  """The memory when episodes begin: zeros, floatx `[number, size]`; None if the size is 0."""
  return np.zeros([number, size], keras.config.floatx()) if size else None


def acted(act: Act, size: int, observations: np.ndarray, noise: np.ndarray,
          memory: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
  """The actions of a policy, float32 `[n, a]`, and its memory after them, floatx `[n, m]` or None.

  The size is a, and the other arguments are those of `Act`. A memory of None is that of a policy
  that has none. Raises a UsageError if the actions have another shape.
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
                     "discrete environment takes the action whose number is the largest")
  return actions, memory
