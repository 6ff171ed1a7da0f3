"""`sweep.html`: one self-contained page about a sweep, the best first."""

import math
import pathlib
from collections.abc import Sequence
from html import escape
from typing import Any

from replicator import atomic
from replicator.console.formatting import format_duration, format_number
from replicator.sweeps import results, space, trials
from replicator.sweeps.results import Row, Setting
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
  sections = [charts.section("Trials, the best first", _table(rows, file))]
  if file.seeds:
    sections.append(charts.section("Settings: mean and spread over the seeds",
                                   _settings(settings, file)))
  if drawing := parallel.drawn(current, file):
    sections.append(charts.section("Parallel coordinates", drawing))
  if together := _together(settings, file):
    sections.append(charts.section(f"{file.metric} by step", together))
  sections.append(charts.section("A curve per trial", _curves(settings, file), "panels"))
  text = charts.page(folder.resolve().name, f"Sweep of {file.experiment}", "".join(sections),
                     _badges(current, file, count))
  atomic.write_whole(folder / FILE, text)


def _badges(current: Sequence[Row], file: SweepFile, count: int) -> str:
  failed = any(row.record.status == FAILED for row in current)
  kind = "bad" if failed else "good"
  words = [f"{'lowest' if file.goal == 'min' else 'highest'} {file.metric} is best",
           f"{format_duration(sum(row.record.seconds for row in current))} in all"]
  return (f'<span class="{kind}">{escape(summary(current, count))}</span>'
          + "".join(f"<span>{escape(text)}</span>" for text in words))


def label(bindings: space.Point) -> str:
  """`learning_rate 0.0002, latent_dim 16`."""
  short = trials.short_names(list(bindings))
  return ", ".join(f"{short[name]} {value_text(value)}" for name, value in bindings.items())


def value_text(value: Any) -> str:
  """As short as can be read."""
  if isinstance(value, float):
    return format_number(value)
  return value if isinstance(value, str) else space.text_of(value)


def _table(rows: Sequence[Row], file: SweepFile) -> str:
  names = sorted({name for row in rows for name in row.record.bindings})
  short = trials.short_names(names)
  head = "".join(f'<th title="{escape(name)}">{escape(short[name])}' for name in names)
  body = ""
  for place, row in enumerate(rows, 1):
    record = row.record
    cells = "".join(f"<td>{escape(value_text(record.bindings[name]))}"
                    if name in record.bindings else "<td>" for name in names)
    status = record.status if row.is_current else f"{record.status}, not in the sweep file now"
    kind = _KINDS.get(record.status, "")
    body += (f'<tr title="{escape(record.id)}"><th>{place}<td>{_number(row.best)}'
             f"<td>{_number(row.last)}{cells}<td>{'' if row.step is None else row.step}"
             f"<td>{format_duration(record.seconds)}"
             f'<td><span class="{kind}" title="{escape(record.message)}">{escape(status)}</span>')
  failures = "".join(f'<p class="bad">{escape(row.record.id)}: {escape(row.record.message)}</p>'
                     for row in rows if row.record.status == FAILED)
  return (f"<table class=numbers><tr><th><th>best {escape(file.metric)}<th>last{head}<th>step"
          f"<th>time<th>status{body}</table>{failures}")


def _number(value: float) -> str:
  return "" if math.isnan(value) else format_number(value)


def _settings(settings: Sequence[Setting], file: SweepFile) -> str:
  means = [setting.values() for setting in settings if len(setting.values())]
  span = (min(map(min, means)), max(map(max, means))) if means else (0.0, 1.0)
  body = "".join(
    f"<tr><th>{escape(label(setting.bindings)) or 'all'}<td>{_number(setting.mean())}"
    f"<td>{_number(setting.spread())}<td>{len(setting.values())} of {len(setting.rows)}"
    f'<td style="width: 40%">{parallel.strip(setting.values(), span)}' for setting in settings)
  ends = (f'<span style="float: left">{format_number(span[0])}</span>{format_number(span[1])}'
          if means else "")
  return (f"<table class=numbers><tr><th>setting<th>mean of best {escape(file.metric)}"
          f"<th>standard deviation<th>seeds<th>{ends}{body}</table>")


def _together(settings: Sequence[Setting], file: SweepFile) -> str:
  """The best settings' curves over one another: of several seeds, the mean."""
  series = {label(setting.bindings) or "all": setting.mean_series() for setting in settings
            if len(setting.mean_series()[0])}
  best = dict(list(series.items())[:_TOGETHER])
  if not best:
    return ""
  note = f"<p>The best {_TOGETHER} of {len(series)}.</p>" if len(series) > len(best) else ""
  return (f'{charts.legend(list(best))}<div style="max-width: 720px">{charts.curves(best)}</div>'
          f"{note}")


def _curves(settings: Sequence[Setting], file: SweepFile) -> str:
  """A panel for each setting, the best first, with a curve for each seed."""
  import numpy as np
  panels = ""
  for setting in settings:
    series = {_seed(row): tuple(np.array(row.series, float).reshape(-1, 2).T)
              for row in setting.rows}
    legend = charts.legend(list(series)) if len(series) > 1 else ""
    panels += charts.panel(label(setting.bindings) or "all", legend + charts.curves(series),
                           "evaluation")
  return panels or '<p class="warn">No trial has begun.</p>'


def _seed(row: Row) -> str:
  return f"seed {row.record.bindings[space.SEED]}" if space.SEED in row.record.bindings else ""
