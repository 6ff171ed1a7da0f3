"""The scalars that a step returns: checked, and averaged between log points."""

from typing import Any

import numpy as np
import tensorflow as tf

from replicator.errors import UsageError


class RunningMeans:
  """Means of scalars over steps; they continue from the `state` of earlier means."""

  def __init__(self, state: dict | None = None):
    self._sums: dict[str, float] = dict(state["sums"]) if state else {}
    self._count: int = state["count"] if state else 0

  def add(self, values: dict[str, np.ndarray]) -> None:
    """Adds the values of some steps, `{name: [steps]}`."""
    for name, series in values.items():
      self._sums[name] = self._sums.get(name, 0.0) + float(np.sum(series, dtype=np.float64))
    self._count += len(next(iter(values.values())))

  def take(self) -> dict[str, float]:
    """Returns the means, and starts over."""
    means = {name: total / self._count for name, total in self._sums.items()}
    self._sums, self._count = {}, 0
    return means

  def state(self) -> dict:
    """What a checkpoint keeps, as JSON."""
    return {"sums": dict(self._sums), "count": self._count}


def checked_scalars(outputs: Any) -> dict[str, tf.Tensor]:
  """Returns the outputs of a step; raises a UsageError unless they are scalars to log."""
  if not isinstance(outputs, dict) or not outputs:
    raise UsageError("the step must return a non-empty dict of scalars to log, such as "
                     f"{{'loss': loss}}, not {type(outputs).__name__}")
  for name, value in outputs.items():
    if name in ("step", "seconds", "staleness"):
      raise UsageError(f"the step returned '{name}', which is a column of the log already; call it "
                       "something else")
    value = tf.convert_to_tensor(value)
    if value.shape.rank != 0:
      raise UsageError(f"the step returned '{name}' of shape {value.shape}; return a scalar, "
                       "such as its tf.reduce_mean over the replica's examples")
  return outputs
