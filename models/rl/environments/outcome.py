"""The outcome of a step in several environments."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Outcome(NamedTuple):
  """The outcome of a step in n environments.

  Values of a failed environment are invalid, and it must be reset.
  """

  observation: np.ndarray  # [n, *observation_shape]
  reward: np.ndarray  # float64 [n]
  terminated: np.ndarray  # bool [n], whether the episode ended for good.
  truncated: np.ndarray  # bool [n], whether the episode was cut, usually because of its length.
  failures: dict[int, str]  # The error of each environment that failed, by number.
  info: dict[str, np.ndarray]  # Numbers of `info`, float64 [n], by name; NaN where missing.
  warnings: tuple[str, ...] = ()  # One line each, one of each kind.


def merged(mask: np.ndarray, chosen: np.ndarray, other: np.ndarray) -> np.ndarray:
  """Returns rows of `chosen` where the mask [n] is True, else rows of `other`: `[n, ...]`."""
  return np.where(mask.reshape([-1] + [1] * (chosen.ndim - 1)), chosen, other)


def failures_in(observation: np.ndarray, reward: np.ndarray, info: dict) -> dict[int, str]:
  """Returns failures by environment number, given the results of a vector of n environments."""
  failures: dict[int, str] = {}
  fit = np.abs(reward) <= np.finfo(np.float32).max  # False for NaN.
  if not fit.all() or not np.isfinite(observation).all():
    for i in range(len(reward)):
      if not np.isfinite(observation[i]).all():
        failures[i] = "its observation is not finite"
      elif not fit[i]:
        failures[i] = f"its reward is {reward[i]}"
  if "error" in info:
    failures.update((int(i), info["error"][i]) for i in np.flatnonzero(info["_error"]))
  return failures


def numbers_in(info: dict, names: Sequence[str], n: int) -> dict[str, np.ndarray]:
  """Returns `Outcome.info` with these names, from the info of a vector of n environments."""
  given, found = info.get("numbers", {}), {}
  for name in names:
    has = given.get(f"_{name}", np.zeros([n], bool))
    found[name] = np.where(has, given.get(name, np.nan), np.nan)
  return found
