"""The results of a sweep: a row for each trial, settings over their seeds, and `sweep.csv`."""

import csv
import dataclasses
import io
import math
import pathlib
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from replicator.atomic import write_whole
from replicator.sweeps import space, trials
from replicator.sweeps.sweep_file import SweepFile
from replicator.sweeps.trials import Metrics, Record

CSV = "sweep.csv"


@dataclasses.dataclass(frozen=True)
class TrialRow:
  """A trial and the metric that it has logged."""

  record: Record
  series: trials.Series  # The values of the sweep's metric.
  best: float  # The best value of the metric; nan without a value.
  last: float  # The last value of the metric; nan without a value.
  step: int | None  # The last step that was logged; None before the first.
  is_current: bool  # Whether the trial is still in the sweep file.


def rows(file: SweepFile, records: Iterable[Record], current: Iterable[str],
         metrics_of: Callable[[str], Metrics]) -> list[TrialRow]:
  """A row for each record: the best first, then those without a metric, then not current ones."""
  made = []
  for record in records:
    metrics = metrics_of(record.id)
    series = metrics.series(file.metric)
    made.append(TrialRow(record, series, trials.best_of(series, file.goal),
                    series[-1][1] if series else math.nan, metrics.step(), record.id in current))
  return sorted(made, key=lambda row: (not row.is_current, _rank(row.best, file.goal),
                                       row.record.order))


def _rank(value: float, goal: str) -> float:
  """A key to sort by: the best value first, nan last."""
  return math.inf if math.isnan(value) else value if goal == "min" else -value


@dataclasses.dataclass(frozen=True)
class Setting:
  """Trials that differ only in their seed: their common bindings, and their rows by seed."""

  bindings: space.Point
  rows: list[TrialRow]

  def values(self) -> np.ndarray:
    """The best metric of each seed that has one, `[n]`."""
    return np.array([row.best for row in self.rows if math.isfinite(row.best)])

  def mean(self) -> float:
    """The mean of `values`; nan if there is none."""
    return float(self.values().mean()) if len(self.values()) else math.nan

  def spread(self) -> float:
    """The sample standard deviation of `values`; nan for fewer than two."""
    return float(self.values().std(ddof=1)) if len(self.values()) > 1 else math.nan


def settings(all_rows: Sequence[TrialRow], goal: str) -> list[Setting]:
  """The settings of the current trials, the best mean first."""
  groups: dict[str, Setting] = {}
  for row in all_rows:
    if row.is_current:
      bindings = {name: value for name, value in row.record.bindings.items()
                  if name != space.SEED}
      groups.setdefault(space.text_of(bindings), Setting(bindings, [])).rows.append(row)
  for group in groups.values():
    group.rows.sort(key=lambda row: str(row.record.bindings.get(space.SEED)).zfill(20))
  return sorted(groups.values(), key=lambda group: _rank(group.mean(), goal))


def write_csv(folder: pathlib.Path, all_rows: Sequence[TrialRow], file: SweepFile) -> None:
  """Writes `sweep.csv`: a row for each recorded trial, the best first."""
  names = sorted({name for row in all_rows for name in row.record.bindings})
  text = io.StringIO()
  writer = csv.writer(text, lineterminator="\n")
  writer.writerow(["id", "status", *names, "step", "seconds", f"best {file.metric}",
                   f"last {file.metric}", "in_sweep_file", "message"])
  for row in all_rows:
    writer.writerow([
      row.record.id, row.record.status, *(row.record.bindings.get(name) for name in names),
      row.step, row.record.seconds, row.best if row.series else None,
      row.last if row.series else None, "yes" if row.is_current else "no", row.record.message])
  write_whole(folder / CSV, text.getvalue())
