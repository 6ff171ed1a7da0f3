"""The end of a run that no longer improves."""

import math
from typing import Any

from replicator.checkpoints.retention import Retention
from replicator.console.formatting import format_number
from replicator.errors import UsageError
from replicator.workdir.reader import as_json


class Patience:
  """Says when a run is over, since its metric has not improved in so many evaluations; 0 for never.

  The metric is that of the best checkpoint. A NaN is no improvement. Raises a UsageError if the
  metric is not one of the evaluations, which are `eval_every` steps apart.
  """

  def __init__(self, evaluations: int, eval_every: int, retention: Retention):
    self.metric = retention.keep_best or ""
    self.is_over = False
    self._evaluations = evaluations
    self._steps = evaluations * eval_every
    self._best_is = retention.best_is
    self._best, self._since = math.nan, 0  # The best value, and its step.
    if evaluations and not self.metric.startswith("eval/"):
      raise UsageError(f"train.patience = {evaluations}: needs the metric to improve; write "
                       "Checkpoints.keep_best = 'eval/...', and Checkpoints.best_is")

  def __str__(self) -> str:
    best = f" on its {format_number(self._best)} of step {self._since}"
    return (f"{self.metric} has not improved{'' if math.isnan(self._best) else best} in "
            f"train.patience = {self._evaluations} evaluations")

  def saw(self, step: int, value: float) -> None:
    """Hears what the evaluation after `step` steps found."""
    better = value < self._best if self._best_is == "min" else value > self._best
    if better or (math.isnan(self._best) and not math.isnan(value)):
      self._best, self._since = value, step
    self._decide(step)

  def state(self) -> dict[str, Any]:
    """The part of a checkpoint, as JSON; nothing in a run that no evaluation ends."""
    if not self._evaluations:
      return {}
    return {"best": [self.metric, self._best_is, as_json(self._best), self._since]}

  def restore(self, state: dict[str, Any]) -> None:
    """Goes on from a `state` with the "step" of its checkpoint; another metric begins there."""
    metric, best_is, best, since = state.get("best", [""] * 4)
    if (metric, best_is) == (self.metric, self._best_is):
      self._best, self._since = float(best), since
    else:
      self._best, self._since = math.nan, state["step"]
    self._decide(state["step"])

  def _decide(self, step: int) -> None:
    self.is_over = 0 < self._steps <= step - self._since
