"""The results of a sweep: a row per trial, settings over their seeds, messages, and two files.

`sweep.csv` has the rows. `sweep.html` is a self-contained page, with the best trials first.
"""

import csv
import dataclasses
import io
import math
import pathlib
from collections.abc import Iterable, Sequence

from replicator.atomic import write_whole
from replicator.console.formatting import format_duration, format_number, listed
from replicator.tools.sweeps import space, trials
from replicator.tools.sweeps.populations import lineage
from replicator.tools.sweeps.sweep_file import SweepFile
from replicator.tools.sweeps.trials import DONE, FAILED, PRUNED, RUNNING, STOPPED, Record
from replicator.training.workdir import pages, reader

import numpy as np

CSV, PAGE = "sweep.csv", "sweep.html"
_TEMPLATES = pathlib.Path(__file__).parent / "templates"
_KINDS = {DONE: "good", FAILED: "bad", PRUNED: "warn"}


@dataclasses.dataclass
class TrialResult:
  """The record of a trial, and the values of the sweep's metric in its log."""

  record: Record
  file: SweepFile
  is_current: bool = True  # Whether the sweep file and its gin files still produce this trial.
  series: Sequence[tuple[int, float]] = ()  # The values of the metric, `[(step, value)]`.
  step: int | None = None  # The last logged step; None before the first.
  _seen: tuple[int, int] | None = None  # The time and size of `metrics.jsonl` when it was read.

  def read(self, folder: pathlib.Path) -> None:
    """Reads the changed files of the trial's folder; skips a partial last line."""
    self.record = trials.read_record(folder) or self.record
    try:
      status = (folder / "metrics.jsonl").stat()
    except FileNotFoundError:
      return
    if self._seen != (status.st_mtime_ns, status.st_size):
      self._seen = status.st_mtime_ns, status.st_size
      rows = reader.read(folder).rows
      self.series = [(row["step"], float(row[self.file.metric])) for row in rows
                     if isinstance(row.get(self.file.metric), int | float)]
      self.step = rows[-1]["step"] if rows else None

  def finite(self) -> dict[int, float]:
    """Returns the finite values of the metric, `{step: value}`."""
    return {step: value for step, value in self.series if math.isfinite(value)}

  def best(self) -> float:
    """Returns the best value of the metric; nan if none is finite."""
    best_of = min if self.file.goal == "min" else max
    return best_of(self.finite().values(), default=math.nan)

  def score(self) -> float:
    """Returns the value to compare trials by: the best one, or in a population, the last one."""
    return self.last() if self.file.population else self.best()

  def at(self, step: int) -> float:
    """Returns the metric at a step; nan if there is none."""
    return dict(self.series).get(step, math.nan)

  def last(self) -> float:
    """Returns the last value of the metric; nan if there is none."""
    return self.series[-1][1] if self.series else math.nan


def ranked(results: Iterable[TrialResult]) -> list[TrialResult]:
  """Sorts results: the best first, then those without a metric, then those that are not current."""
  return sorted(results, key=lambda result: (
      not result.is_current, rank(result.score(), result.file.goal), result.record.order))


def rank(value: float, goal: str) -> float:
  """Returns a sort key that puts the best value first and non-finite ones last."""
  return math.inf if not math.isfinite(value) else value if goal == "min" else -value


@dataclasses.dataclass(frozen=True)
class Setting:
  """Trials that differ only in their seed: their common bindings, and their results."""

  bindings: space.Point
  results: list[TrialResult]

  def values(self) -> np.ndarray:
    """Returns the score of each seed that has one, `[n]`."""
    return np.array([result.score() for result in self.results if math.isfinite(result.score())])

  def mean(self) -> float:
    """Returns the mean of `values`; nan if there are none."""
    return float(self.values().mean()) if len(self.values()) else math.nan

  def spread(self) -> float:
    """Returns the sample standard deviation of `values`; nan for fewer than two."""
    return float(self.values().std(ddof=1)) if len(self.values()) > 1 else math.nan


def by_setting(results: Iterable[TrialResult], goal: str) -> list[Setting]:
  """Returns the current trials' settings: best mean first, last those where a seed has no score."""
  groups: dict[str, Setting] = {}
  for result in results:
    if result.is_current:
      bindings = {name: value for name, value in result.record.bindings.items()
                  if name != space.SEED}
      groups.setdefault(space.text_of(bindings), Setting(bindings, [])).results.append(result)
  for group in groups.values():
    group.results.sort(key=lambda result: result.record.order)
  return sorted(groups.values(), key=lambda group: (
      len(group.values()) < len(group.results), rank(group.mean(), goal)))


def write_csv(folder: pathlib.Path, results: Sequence[TrialResult], metric: str) -> None:
  """Writes `sweep.csv`, with one row per result."""
  names = sorted({name for result in results for name in result.record.bindings})
  parent = ["parent"] if any(result.record.generation for result in results) else []
  text = io.StringIO()
  writer = csv.writer(text, lineterminator="\n")
  writer.writerow(["id", "status", *names, "step", "seconds", f"best {metric}", f"last {metric}",
                   *parent, "in_sweep_file", "message"])
  for result in results:
    record = result.record
    writer.writerow([
        record.id, record.status, *(record.bindings.get(name) for name in names), result.step,
        record.seconds, *([result.best(), result.last()] if result.series else [None, None]),
        *([record.parent] if parent else []), "yes" if result.is_current else "no", record.message])
  write_whole(folder / CSV, text.getvalue())


def write_page(folder: pathlib.Path, results: Sequence[TrialResult], file: SweepFile, count: int
               ) -> None:
  """Writes the self-contained page `sweep.html` for a sweep of `count` trials."""
  current = [result for result in results if result.is_current]
  settings = by_setting(results, file.goal)
  best = [result.score() for result in current if math.isfinite(result.score())] or [math.nan]
  is_bad = any(result.record.status == FAILED for result in current)
  seconds = sum(result.record.seconds for result in current)
  badges = [pages.Badge(summary(current, count), "bad" if is_bad else "good"),
            pages.Badge(f"{file.best()} {file.metric} is best"),
            pages.Badge(f"{format_duration(seconds)} in all")]
  names = sorted({name for result in results for name in result.record.bindings})
  reports = {result.record.id: f"trials/{result.record.id}/report.html" for result in results}
  write_whole(folder / PAGE, pages.render(
    PAGE, _TEMPLATES, title=folder.resolve().name, what=f"Sweep of {file.experiment}",
    badges=badges, file=file, results=results, settings=settings, kinds=_KINDS,
    names=trials.short_names(names),
    span=(min(best), max(best)), charts=list(map(_panel, settings)), label=trials.label,
    reports={trial: path for trial, path in reports.items() if (folder / path).exists()},
    gin_text=space.gin_text, lineage=pages.picture(
        folder / lineage.FILE, "One curve per member. A copy starts where its donor was.")
    if file.population and (folder / lineage.FILE).exists() else None))


def _panel(setting: Setting) -> pages.Panel:
  """Draws the curves of a setting, one per seed or member."""
  curves = {f"seed {result.record.bindings.get(space.SEED)}" if not result.record.generation else
            result.record.id: tuple(np.reshape(result.series, (-1, 2)).T)
            for result in setting.results}
  names = list(curves)
  panel = pages.panel(trials.label(setting.bindings), [*curves.values()], names=names,
                      kind="evaluation")
  return dataclasses.replace(panel, labels=names if len(names) > 1 else ())


# ---- Lines --------------------------------------------------------------------------------------


def ended(result: TrialResult) -> str:
  """Formats an ended trial: `done    lr=0.1_seed=1_d0c1  eval/loss 0.53  2m 05s`."""
  return "  ".join(filter(None, [
    f"{result.record.status:8s}{_with_metric(result)}", format_duration(result.record.seconds),
    result.record.message]))


def state(results: Sequence[TrialResult], count: int) -> str:
  """Formats the state of a sweep of `count` trials with the current `results`, best first."""
  best = f"; the best: {_with_metric(results[0])}" if results and results[0].series else ""
  return f"{summary(results, count)}{best}"


def apart(results: Iterable[TrialResult]) -> list[str]:
  """Returns a message about the trials that are not current, if any."""
  ids = [result.record.id for result in results if not result.is_current]
  return ["shown separately, because the sweep or the contents of its gin files have changed "
          f"since: {listed(ids)}"] if ids else []


def summary(results: Sequence[TrialResult], count: int) -> str:
  """Summarizes the current `results`: `7 of 12 done, 2 running, 1 failed`."""
  statuses = [result.record.status for result in results]
  return ", ".join([f"{statuses.count(DONE)} of {count} done",
                    *(f"{statuses.count(status)} {status}"
                      for status in (RUNNING, PRUNED, STOPPED, FAILED) if status in statuses)])


def _with_metric(result: TrialResult) -> str:
  value = f"  {result.file.metric} {format_number(result.score())}" if result.series else ""
  return f"{result.record.id}{value}"
