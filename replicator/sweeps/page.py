"""`sweep.html`: one self-contained page about a sweep, its best trials first."""

import math
import pathlib
from collections.abc import Sequence

import numpy as np

from replicator.atomic import write_whole
from replicator.console.formatting import format_duration
from replicator.sweeps import space, trials
from replicator.sweeps.populations import lineage
from replicator.sweeps.results import Setting, TrialResult, by_setting, summary
from replicator.sweeps.sweep_file import SweepFile
from replicator.sweeps.trials import DONE, FAILED, PRUNED
from replicator.workdir import charts, pages

FILE = "sweep.html"
_TEMPLATES = pathlib.Path(__file__).parent / "templates"
_KINDS = {DONE: "good", FAILED: "bad", PRUNED: "warn"}


def write(folder: pathlib.Path, results: Sequence[TrialResult], file: SweepFile, count: int
          ) -> None:
  """Writes `sweep.html`, which needs no other file, for a sweep of `count` trials."""
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
  write_whole(folder / FILE, pages.render(
    FILE, _TEMPLATES, title=folder.resolve().name, what=f"Sweep of {file.experiment}",
    badges=badges, file=file, results=results, settings=settings, kinds=_KINDS,
    names=trials.short_names(names),
    span=(min(best), max(best)), charts=list(map(_panel, settings)), label=trials.label,
    reports={trial: path for trial, path in reports.items() if (folder / path).exists()},
    gin_text=space.gin_text, lineage=pages.picture(
        folder / lineage.FILE, "A curve per member. A copy begins where its donor was.")
    if file.population and (folder / lineage.FILE).exists() else None))


def _panel(setting: Setting) -> pages.Panel:
  """The curves of a setting, one for each seed or member."""
  curves = {f"seed {result.record.bindings.get(space.SEED)}" if not result.record.generation else
            result.record.id: tuple(np.reshape(result.series, (-1, 2)).T)
            for result in setting.results}
  return pages.Panel(trials.label(setting.bindings), charts.curves([*curves.values()]),
                     "evaluation", labels=list(curves) if len(curves) > 1 else ())

