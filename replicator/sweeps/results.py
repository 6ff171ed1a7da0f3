"""What came of the trials: rows, the best first; settings over their seeds; `sweep.csv`."""

import csv
import dataclasses
import io
import math
import pathlib
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from replicator import atomic
from replicator.sweeps import space, trials
from replicator.sweeps.sweep_file import SweepFile
from replicator.sweeps.trials import Metrics, Record

CSV = "sweep.csv"


@dataclasses.dataclass(frozen=True)
class Row:
  """A trial and what it has logged.

  Attributes:
    series: `[(step, value)]` of the sweep's metric.
    best: the best value of the metric; nan if there is none.
    last: the last value of the metric; nan if there is none.
    step: the last one that was logged.
    is_current: whether the sweep file still has this trial.
  """

  record: Record
  series: list[tuple[int, float]]
  best: float
  last: float
  step: int | None
  is_current: bool


def rows(file: SweepFile, records: Iterable[Record], current: set[str],
         metrics_of: Callable[[str], Metrics]) -> list[Row]:
  """A row for each record: the best first, then those without a metric, then earlier files'."""
  made = []
  for record in records:
    metrics = metrics_of(record.id)
    series = metrics.series(file.metric)
    made.append(Row(record, series, trials.best_of(series, file.goal),
                    series[-1][1] if series else math.nan, metrics.step(), record.id in current))
  sign = 1 if file.goal == "min" else -1
  return sorted(made, key=lambda row: (not row.is_current, math.isnan(row.best),
                                       0.0 if math.isnan(row.best) else sign * row.best,
                                       row.record.order))


@dataclasses.dataclass(frozen=True)
class Setting:
  """The trials that differ in their seed only.

  Attributes:
    bindings: all but the seed.
    rows: the trials, by seed.
  """

  bindings: space.Point
  rows: list[Row]

  def values(self) -> np.ndarray:
    """The best metric of each seed that has one, `[n]`."""
    return np.array([row.best for row in self.rows if math.isfinite(row.best)])

  def mean(self) -> float:
    """Of `values`; nan if there is none."""
    return float(self.values().mean()) if len(self.values()) else math.nan

  def spread(self) -> float:
    """The standard deviation of `values` as a sample; nan for fewer than two."""
    return float(self.values().std(ddof=1)) if len(self.values()) > 1 else math.nan

  def mean_series(self) -> tuple[np.ndarray, np.ndarray]:
    """Steps that all seeds have logged, and the mean of the metric there: `[n], [n]`."""
    tables = [dict(row.series) for row in self.rows if row.series]
    steps = sorted(set.intersection(*map(set, tables))) if tables else []
    return (np.array(steps, float),
            np.array([np.mean([table[step] for table in tables]) for step in steps]))


def settings(all_rows: Sequence[Row], goal: str) -> list[Setting]:
  """The settings of the current trials, the best mean first."""
  groups: dict[str, Setting] = {}
  for row in all_rows:
    if row.is_current:
      bindings = {name: value for name, value in row.record.bindings.items()
                  if name != space.SEED}
      group = groups.setdefault(space.text_of(bindings), Setting(bindings, []))
      group.rows.append(row)
  for group in groups.values():
    group.rows.sort(key=lambda row: str(row.record.bindings.get(space.SEED)).zfill(20))
  sign = 1 if goal == "min" else -1
  return sorted(groups.values(), key=lambda group: (
    math.isnan(group.mean()), 0.0 if math.isnan(group.mean()) else sign * group.mean()))


def write_csv(folder: pathlib.Path, all_rows: Sequence[Row], file: SweepFile) -> None:
  """Writes `sweep.csv`: a row for each trial on record, the best first."""
  names = sorted({name for row in all_rows for name in row.record.bindings})
  text = io.StringIO()
  writer = csv.writer(text, lineterminator="\n")
  writer.writerow(["id", "status", *names, "step", "seconds", f"best {file.metric}",
                   f"last {file.metric}", "in_sweep_file", "message"])
  for row in all_rows:
    writer.writerow([
      row.record.id, row.record.status, *(_cell(row.record.bindings.get(name)) for name in names),
      _cell(row.step), row.record.seconds, _cell(row.best if row.series else None),
      _cell(row.last if row.series else None), "yes" if row.is_current else "no",
      row.record.message])
  atomic.write_whole(folder / CSV, text.getvalue())


def _cell(value: object) -> object:
  return "" if value is None else value if isinstance(value, int | float | str) else repr(value)
