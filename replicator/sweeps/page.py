"""`sweep.html`: one self-contained page about a sweep, its best trials first."""

import math
import pathlib
from collections.abc import Sequence

import numpy as np

from replicator.atomic import write_whole
from replicator.console.formatting import format_duration
from replicator.sweeps import results, space, trials
from replicator.sweeps.results import Setting, TrialRow
from replicator.sweeps.sweep_file import SweepFile
from replicator.sweeps.table import summary
from replicator.sweeps.trials import DONE, FAILED, PRUNED
from replicator.workdir import charts, pages

FILE = "sweep.html"
_TEMPLATES = pathlib.Path(__file__).parent / "templates"
_KINDS = {DONE: "good", FAILED: "bad", PRUNED: "warn"}


def write(folder: pathlib.Path, rows: Sequence[TrialRow], file: SweepFile, count: int) -> None:
  """Writes `sweep.html`, which needs no other file, for a sweep of `count` trials."""
  current = [row for row in rows if row.is_current]
  settings = results.settings(rows, file.goal)
  best = [row.best for row in current if math.isfinite(row.best)] or [math.nan]
  is_bad = any(row.record.status == FAILED for row in current)
  badges = [pages.Badge(summary(current, count), "bad" if is_bad else "good"),
            pages.Badge(f"{file.best()} {file.metric} is best"),
            pages.Badge(f"{format_duration(sum(row.record.seconds for row in current))} in all")]
  reports = {row.record.id: f"trials/{row.record.id}/report.html" for row in rows}
  write_whole(folder / FILE, pages.render(
    FILE, _TEMPLATES, title=folder.resolve().name, what=f"Sweep of {file.experiment}",
    badges=badges, file=file, rows=rows, settings=settings, kinds=_KINDS,
    names=trials.short_names(sorted({name for row in rows for name in row.record.bindings})),
    span=(min(best), max(best)), charts=list(map(_panel, settings)), label=_label,
    reports={trial: path for trial, path in reports.items() if (folder / path).exists()},
    short_text=space.short_text))


def _panel(setting: Setting) -> pages.Panel:
  """The curves of a setting, one for each seed."""
  curves = {f"seed {row.record.bindings.get(space.SEED)}": tuple(np.reshape(row.series, (-1, 2)).T)
            for row in setting.rows}
  return pages.Panel(_label(setting.bindings), charts.curves(curves), "evaluation",
                     labels=list(curves) if len(curves) > 1 else ())


def _label(bindings: space.Point) -> str:
  """`learning_rate 0.0002, latent_dim 16`; `all` without bindings."""
  short = trials.short_names(list(bindings))
  return ", ".join(f"{short[name]} {space.short_text(value)}"
                   for name, value in bindings.items()) or "all"
