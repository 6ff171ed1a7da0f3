"""The scalars that a step returns: checked, and averaged between log points."""

from typing import Any

import numpy as np
import tensorflow as tf

from replicator.errors import UsageError
from replicator.workdir.reader import TIMES


class RunningMeans:
  """Means of scalars over the steps that returned them, which continue from an earlier `state`."""

  def __init__(self, state: dict | None = None):
    self._sums: dict[str, float] = dict(state["sums"]) if state else {}
    self._counts: dict[str, int] = {}
    if state:  # Earlier versions kept one count.
      self._counts = state.get("counts") or dict.fromkeys(self._sums, state.get("count", 0))

  def add(self, values: dict[str, np.ndarray]) -> None:
    """Adds the values of some steps, `{name: [steps]}`."""
    for name, series in values.items():
      self._sums[name] = self._sums.get(name, 0.0) + float(np.sum(series, dtype=np.float64))
      self._counts[name] = self._counts.get(name, 0) + len(series)

  def take(self) -> dict[str, float]:
    """Returns the means, and starts over."""
    means = {name: total / self._counts[name] for name, total in self._sums.items()}
    self._sums, self._counts = {}, {}
    return means

  def state(self) -> dict:
    """The sums and counts that a checkpoint keeps, as JSON."""
    return {"sums": dict(self._sums), "counts": dict(self._counts)}


def checked_scalars(outputs: Any) -> dict[str, tf.Tensor]:
  """Returns the outputs of a step; raises a UsageError unless they are scalars to log."""
  if not isinstance(outputs, dict) or not outputs:
    raise UsageError("the step must return a non-empty dict of scalars to log, such as "
                     f"{{'loss': loss}}, not {type(outputs).__name__}")
  for name, value in outputs.items():
    if name in ("step", "staleness", *TIMES):
      raise UsageError(f"the step returned '{name}', which is a column of the log already; call it "
                       "something else")
    value = tf.convert_to_tensor(value)
    if value.shape.rank != 0:
      raise UsageError(f"the step returned '{name}' of shape {value.shape}; return a scalar, "
                       "such as its tf.reduce_mean over the replica's examples")
  return outputs
