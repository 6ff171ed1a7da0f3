"""Ends a run that no longer improves."""

import math
from typing import TYPE_CHECKING, Literal

from replicator.console.formatting import format_number
from replicator.errors import UsageError, at_least_one, nearest
from replicator.training.callbacks.callback import Callback
from replicator.training.run import Run
from replicator.training.workdir import reader

import gin

if TYPE_CHECKING:
  from replicator.training.evaluation import Evaluation


@gin.configurable(module="replicator")
class EarlyStopping(Callback):
  """A callback that ends a run whose metric has not improved in `patience` evaluations.

  The run ends successfully. Earlier values are read from the log, so a resumed run continues
  exactly. A NaN is not an improvement.

  Args:
    metric: the name of a scalar of the evaluations, such as 'eval/error'.
    patience: the number of evaluations in a row without a better value after which the run ends.
    best_is: 'min' or 'max': which value is better.

  Raises a UsageError if `patience` is below 1.
  """

  in_checks = False
  every = 0

  def __init__(self, metric: str, patience: int, best_is: Literal["min", "max"] = "min"):
    at_least_one("EarlyStopping", patience=patience)
    self.metric, self.patience, self.best_is = metric, patience, best_is
    self._values: list[tuple[int, float]] = []  # Of all evaluations so far, with their steps.

  def begin(self, run: Run) -> None:
    """Reads the evaluations so far; raises a UsageError if the run has no evaluations."""
    if not run.evaluate or not run.schedule.eval_every:
      raise UsageError(f"EarlyStopping.metric = '{self.metric}': the run has no evaluations; pass "
                       "evaluate to train, and set train.eval_every")
    rows = reader.read(run.workdir).rows if run.step else []
    self._values = [(row["step"], row[self.metric]) for row in rows if self.metric in row]
    self._stop_if_over(run)

  def evaluated(self, run: Run, found: "Evaluation") -> None:
    """Stops the run if its patience has run out.

    Raises a UsageError if the evaluation does not return the metric.
    """
    if self.metric not in run.scalars:
      names = [f"eval/{name}" for name in found.scalars]
      raise UsageError(f"EarlyStopping.metric = '{self.metric}': the evaluation does not return it."
                       f"{nearest(self.metric, names)} It returns: {', '.join(names)}")
    self._values = [pair for pair in self._values if pair[0] < run.step]  # After a rollback.
    self._values.append((run.step, run.scalars[self.metric]))
    self._stop_if_over(run)

  def _stop_if_over(self, run: Run) -> None:
    best, since = math.nan, 0
    for number, (_, value) in enumerate(self._values):
      better = value < best if self.best_is == "min" else value > best
      if better or (math.isnan(best) and not math.isnan(value)):
        best, since = value, number
    if len(self._values) - 1 - since >= self.patience:
      place = self._values[since][0]
      on = "" if math.isnan(best) else f" on {format_number(best)} (step {place})"
      run.stop(f"{self.metric} has not improved{on} in EarlyStopping.patience = {self.patience} "
               "evaluations")
