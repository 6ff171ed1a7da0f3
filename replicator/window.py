"""The mean of each scalar since the last log point."""

import numpy as np


class Window:
  """Sums of scalars over steps.

  Args:
    state: of an earlier one, to go on from.
  """

  def __init__(self, state: dict | None = None):
    self._sums: dict[str, float] = dict(state["sums"]) if state else {}
    self._count: int = state["count"] if state else 0

  def add(self, values: dict[str, np.ndarray]) -> None:
    """Adds the values of some steps, `{name: [steps]}`."""
    for name, series in values.items():
      self._sums[name] = self._sums.get(name, 0.0) + float(np.sum(series, dtype=np.float64))
    self._count += len(next(iter(values.values())))

  def take(self) -> dict[str, float]:
    """The means; the window starts anew."""
    means = {name: total / self._count for name, total in self._sums.items()}
    self._sums, self._count = {}, 0
    return means

  def state(self) -> dict:
    """What a checkpoint keeps; JSON-able."""
    return {"sums": dict(self._sums), "count": self._count}
