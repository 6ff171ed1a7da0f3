"""`sweep.html`: one self-contained page about a sweep, the best first."""

import math
import pathlib
from collections.abc import Callable, Sequence

import jinja2
from markupsafe import Markup, escape

from replicator.atomic import write_whole
from replicator.console.formatting import format_duration, format_number
from replicator.sweeps import results, space, trials
from replicator.sweeps.results import Row
from replicator.sweeps.sweep_file import SweepFile
from replicator.sweeps.trials import DONE, FAILED, PRUNED
from replicator.sweeps.views import parallel
from replicator.sweeps.views.table import summary
from replicator.workdir import charts

FILE = "sweep.html"
_TOGETHER = 8  # Curves of one drawing, for which there are colors.
_KINDS = {DONE: "good", FAILED: "bad", PRUNED: "warn"}


def write(folder: pathlib.Path, rows: Sequence[Row], file: SweepFile, count: int) -> None:
  """Writes `sweep.html` into the folder of a sweep of `count` trials.

  The page needs no other file and no network.
  """
  current = [row for row in rows if row.is_current]
  settings = results.settings(rows, file.goal)
  best = [row.best for row in current if math.isfinite(row.best)] or [math.nan]
  means = {_label(setting.bindings): setting.mean_series() for setting in settings}
  together = [item for item in means.items() if len(item[1][0])][:_TOGETHER]
  body = _environment().get_template(FILE).render(
    file=file, rows=rows, settings=settings, kinds=_KINDS, span=(min(best), max(best)),
    names=trials.short_names(sorted({name for row in rows for name in row.record.bindings})),
    coordinates=Markup(parallel.coordinates(current, file)), together=dict(together))
  write_whole(folder / FILE, charts.page(folder.resolve().name, f"Sweep of {file.experiment}",
                                         body, _badges(current, file, count)))


def _environment() -> jinja2.Environment:
  safe = lambda draw: lambda *arguments: Markup(draw(*arguments))
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(pathlib.Path(__file__).with_name("templates")),
    autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
  filters: dict[str, Callable] = {"number": _number, "duration": format_duration, "label": _label,
                                  "short_text": space.short_text}
  environment.filters.update(filters)
  environment.globals.update(curves=safe(charts.curves), key=safe(charts.key),
                             strip=safe(parallel.strip))
  return environment


def _badges(current: Sequence[Row], file: SweepFile, count: int) -> str:
  kind = "bad" if any(row.record.status == FAILED for row in current) else "good"
  words = [f"{'lowest' if file.goal == 'min' else 'highest'} {file.metric} is best",
           f"{format_duration(sum(row.record.seconds for row in current))} in all"]
  return (f'<span class="{kind}">{escape(summary(current, count))}</span>'
          + "".join(f"<span>{escape(text)}</span>" for text in words))


def _label(bindings: space.Point) -> str:
  """`learning_rate 0.0002, latent_dim 16`; `all` without bindings."""
  short = trials.short_names(list(bindings))
  return ", ".join(f"{short[name]} {space.short_text(value)}"
                   for name, value in bindings.items()) or "all"


def _number(value: float) -> str:
  return "" if math.isnan(value) else format_number(value)
