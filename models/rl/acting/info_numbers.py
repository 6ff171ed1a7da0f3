"""Numbers in the `info` of environments, such as `is_success`, reduced over episodes."""

from collections.abc import Callable, Mapping, Sequence

from replicator import UsageError

import numpy as np

REDUCTIONS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "last": lambda before, new: new, "max": np.maximum, "mean": np.add, "sum": np.add}
"""The ways to reduce an episode's numbers to one: functions of the previous and the new number."""

_SUCCESS = {"is_success": "last"}  # The usual name in environments with goals.


class InfoNumbers:
  """One number for each name and episode, reduced over its steps.

  Args:
    wanted: names, each with one of `REDUCTIONS`; None for `is_success` at the end of an episode,
      if the environment has it.
    owner: name of the setting, for errors.

  Attributes:
    names: all names.

  Raises:
    UsageError: a reduction is unknown.
  """

  def __init__(self, wanted: Mapping[str, str] | None, owner: str):
    self._reductions = dict(_SUCCESS if wanted is None else wanted)
    self._is_optional, self._owner = wanted is None, owner
    self.names: Sequence[str] = tuple(self._reductions)
    for name, reduction in self._reductions.items():
      if reduction not in REDUCTIONS:
        raise UsageError(f"{owner} = {{'{name}': {reduction!r}}}: write one of "
                         f"{', '.join(map(repr, REDUCTIONS))}")

  def begin(self, episodes: int) -> None:
    """Clears all numbers, before `episodes` new episodes."""
    shape = len(self.names), episodes
    self._values, self._counts = np.full(shape, np.nan), np.zeros(shape, np.int64)

  def add(self, episodes: np.ndarray, numbers: Mapping[str, np.ndarray]) -> None:
    """Adds a step's numbers, float64 [k] by name or NaN, to k different episodes, int [k]."""
    for row, name in enumerate(self.names):
      is_given = ~np.isnan(numbers[name])
      at, new = episodes[is_given], numbers[name][is_given]
      first = self._counts[row, at] == 0
      reduced = REDUCTIONS[self._reductions[name]](self._values[row, at], new)
      self._values[row, at] = np.where(first, new, reduced)
      self._counts[row, at] += 1

  def found(self, environment: str) -> dict[str, np.ndarray]:
    """Returns the numbers by name, float64 [episodes]; NaN for episodes without any.

    Raises:
      UsageError: the environment of that name has no such number in any step.
    """
    found = {}
    for name, values, counts in zip(self.names, self._values, self._counts, strict=True):
      if counts.any():
        is_mean = self._reductions[name] == "mean"
        found[name] = values / np.maximum(counts, 1) if is_mean else values
      elif not self._is_optional:
        raise UsageError(f"{self._owner}: no step of {environment} has info['{name}']; use the "
                         "name of a number that it has")
    return found
