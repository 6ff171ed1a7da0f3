"""Actions as vectors of numbers in [-1, 1].

Actions of a Box are scaled to its bounds. Discrete actions are one or more choices, each a block
with a number for each option; the largest number selects the option.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces


def choices_of(space: spaces.Space) -> tuple[int, ...]:
  """Returns the number of options of each choice of a discrete action space; () for others."""
  if isinstance(space, spaces.Discrete):
    return (int(space.n),)
  if isinstance(space, spaces.MultiDiscrete):
    return tuple(space.nvec.ravel().tolist())
  if isinstance(space, spaces.MultiBinary):
    return (2,) * int(np.prod(space.shape))
  return ()


def size_of(space: spaces.Space) -> int:
  """Returns the length of an action of a Box or a discrete space, as a vector."""
  return space.low.size if isinstance(space, spaces.Box) else sum(choices_of(space))


def to_action(space: spaces.Space) -> Callable[[np.ndarray], Any]:
  """Returns a function from vectors float `[a]` to actions of a Box or a discrete space."""
  if isinstance(space, spaces.Box):
    return _to_box(space)
  bounds = list(itertools.pairwise(np.cumsum([0, *choices_of(space)]).tolist()))
  places = lambda vector: np.array([vector[first:end].argmax() for first, end in bounds])
  if isinstance(space, spaces.Discrete):
    return lambda vector: space.dtype.type(space.start + places(vector)[0])
  start = getattr(space, "start", 0)
  return lambda vector: (start + places(vector).reshape(space.shape)).astype(space.dtype)


def _to_box(space: spaces.Box) -> Callable[[np.ndarray], np.ndarray]:
  """Scales actions in [-1, 1] to the bounds of the environment."""
  low, high = space.low.astype(np.float64), space.high.astype(np.float64)
  middle, half = (high + low) / 2, (high - low) / 2

  def scaled(action: np.ndarray) -> np.ndarray:
    # Rounding must not exceed the bounds, which some environments check.
    inside = np.minimum(np.maximum(middle + half * action.reshape(space.shape), low), high)
    return inside.astype(space.dtype)

  return scaled
