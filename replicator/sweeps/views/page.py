"""`sweep.html`: one self-contained page about a sweep, its best trials first."""

import math
import pathlib
from collections.abc import Sequence

from replicator.atomic import write_whole
from replicator.console.formatting import format_duration
from replicator.sweeps import results, space, trials
from replicator.sweeps.results import Setting, TrialRow
from replicator.sweeps.sweep_file import SweepFile
from replicator.sweeps.trials import DONE, FAILED, PRUNED
from replicator.sweeps.views import parallel
from replicator.sweeps.views.table import summary
from replicator.workdir import charts, pages

FILE = "sweep.html"
_TEMPLATES = pathlib.Path(__file__).parent / "templates"
_TOGETHER = 8  # Curves in one chart: one for each color.
_WIDE = (10.0, 3.2)  # Inches of a chart that has the width of the page.
_KINDS = {DONE: "good", FAILED: "bad", PRUNED: "warn"}


def write(folder: pathlib.Path, rows: Sequence[TrialRow], file: SweepFile, count: int) -> None:
  """Writes `sweep.html`, which needs no other file, for a sweep of `count` trials."""
  current = [row for row in rows if row.is_current]
  settings = results.settings(rows, file.goal)
  best = [row.best for row in current if math.isfinite(row.best)] or [math.nan]
  means = {_label(setting.bindings): setting.mean_series() for setting in settings}
  curves = {label: series for label, series in means.items() if len(series[0])}
  together = dict(list(curves.items())[:_TOGETHER])
  page = pages.render(
    FILE, _TEMPLATES, title=folder.resolve().name, what=f"Sweep of {file.experiment}",
    badges=_badges(current, file, count), file=file, rows=rows, settings=settings, kinds=_KINDS,
    names=trials.short_names(sorted({name for row in rows for name in row.record.bindings})),
    span=(min(best), max(best)), coordinates=parallel.coordinates(current, file),
    together=together, num_curves=len(curves), curves=charts.curves(together, size=_WIDE),
    reports=_reports(folder, rows), charts=list(map(_panel, settings)),
    strip=parallel.strip, label=_label, short_text=space.short_text)
  write_whole(folder / FILE, page)


def _badges(current: Sequence[TrialRow], file: SweepFile, count: int) -> list[pages.Badge]:
  is_bad = any(row.record.status == FAILED for row in current)
  best = "lowest" if file.goal == "min" else "highest"
  seconds = sum(row.record.seconds for row in current)
  return [pages.Badge(summary(current, count), "bad" if is_bad else "good"),
          pages.Badge(f"{best} {file.metric} is best"),
          pages.Badge(f"{format_duration(seconds)} in all")]


def _reports(folder: pathlib.Path, rows: Sequence[TrialRow]) -> dict[str, str]:
  """The report of each trial that has one, from the page."""
  paths = {row.record.id: f"trials/{row.record.id}/report.html" for row in rows}
  return {trial: path for trial, path in paths.items() if (folder / path).exists()}


def _panel(setting: Setting) -> pages.Panel:
  series = setting.series()
  return pages.Panel(_label(setting.bindings), charts.curves(series), "evaluation",
                     labels=list(series) if len(series) > 1 else ())


def _label(bindings: space.Point) -> str:
  """`learning_rate 0.0002, latent_dim 16`; `all` without bindings."""
  short = trials.short_names(list(bindings))
  return ", ".join(f"{short[name]} {space.short_text(value)}"
                   for name, value in bindings.items()) or "all"
