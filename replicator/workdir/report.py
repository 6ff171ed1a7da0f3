"""One self-contained HTML page about a run, from the files of its workdir."""

import math
import os
import pathlib
import re
from html import escape

import numpy as np

from replicator.console.formatting import format_duration, format_number
from replicator.workdir import charts, reader
from replicator.workdir.reader import Run, kind

_SHADED = "shaded: min to max"
_STRIP = 6  # Pictures between the first and the last.
_MEASURES = {"environment steps": "eval/environment_steps", "seconds": "seconds"}
"""What an evaluation with a spread is drawn against, besides steps; by its title, as logged."""
_IN_COMMAND = ("command", "program", "program_file", "argv")


def write_report(workdir: str | os.PathLike) -> pathlib.Path:
  """Writes `report.html` into a run's workdir; returns its path.

  Reads `metrics.jsonl`, `run.json`, `config.gin` and `samples/step-NNNNNNNN.png`. Where one is
  missing or unreadable, the page says so. The page needs no other file and no network.

  Raises:
    UsageError: `workdir` is no folder.
  """
  run = reader.read(workdir)
  body = (f'<div class="tiles">{_tiles(run)}</div>\n'
          + charts.section("Metrics", _table(run))
          + charts.section("Curves by step", _panels(run), "panels")
          + "".join(charts.section(f"Curves by {title}", panels, "panels")
                    for title, name in _MEASURES.items() if (panels := _panels_by(run, name)))
          + charts.section("Samples", _samples(run))
          + charts.section("Configuration", _config(run))
          + charts.section("Command and versions", _facts(run)))
  title = str(run.facts.get("experiment") or run.folder.resolve().name)
  path = run.folder / "report.html"
  path.write_text(charts.page(title, "Training report", body, _badges(run)), encoding="utf-8")
  return path


def _missing(file: str, what: str) -> str:
  return f'<p class="warn">{file} is missing or cannot be read: {what} to show.</p>'


def _badges(run: Run) -> str:
  replicas = run.facts.get("num_replicas")
  texts = [run.facts.get("strategy"),
           replicas and f"{replicas} replica{'s' if replicas != 1 else ''}",
           run.facts.get("precision")]
  look, status = run.status()
  return f'<span class="{look}">{escape(status)}</span>' + "".join(
    f"<span>{escape(str(text))}</span>" for text in texts if text)


def _tiles(run: Run) -> str:
  tiles = {"steps": str(run.rows[-1]["step"])} if run.rows else {}
  timed = np.array([(row["step"], row["seconds"]) for row in run.rows if "seconds" in row])
  if len(timed) > 1:
    steps, seconds = np.diff(timed, axis=0).T
    rate = np.median(steps[seconds > 0] / seconds[seconds > 0]) if any(seconds > 0) else 0.0
    tiles["training time"] = format_duration(timed[-1, 1])
    tiles["steps per second"] = f"{rate:.3g}"
    if batch := run.facts.get("global_batch_size"):
      tiles["examples per second"] = format_number(rate * batch)
  return "".join(f"<div><b>{value}</b>{name}</div>" for name, value in tiles.items())


def _table(run: Run) -> str:
  body = ""
  for name, (_, values) in run.series().items():
    finite = values[np.isfinite(values)]
    shown = [values[-1], values[0], min(finite, default=math.nan), max(finite, default=math.nan)]
    body += (f'<tr><th class="{kind(name)}">{escape(name)}'
             + "".join(f"<td>{format_number(value)}" for value in shown))
  if not body:
    return _missing("metrics.jsonl", "no metrics")
  torn = f'<p class="warn">Unreadable lines in metrics.jsonl: {run.num_torn}.</p>'
  return ("<table class=numbers><tr><th>metric<th>last<th>first<th>lowest<th>highest"
          f"{body}</table>{torn if run.num_torn else ''}")


def _config(run: Run) -> str:
  text = re.sub(r"^#.*", r"<i>\g<0></i>", escape(run.config, quote=False), flags=re.MULTILINE)
  return f"<pre>{text}</pre>" if text else _missing("config.gin", "no configuration")


def _facts(run: Run) -> str:
  if not run.facts:
    return _missing("run.json", "no command and no versions")
  rows = "".join(f"<tr><th>{escape(name.replace('_', ' '))}<td>{escape(_words(value))}"
                 for name, value in run.facts.items()
                 if name not in _IN_COMMAND and value not in (None, [], {}))
  return f"<pre>{escape(str(run.facts.get('command', '')))}</pre><table>{rows}</table>"


def _words(value: object) -> str:
  if isinstance(value, dict):
    return ", ".join(f"{key} {_words(item)}" for key, item in value.items())
  return ", ".join(map(_words, value)) if isinstance(value, list) else str(value)


def _samples(run: Run) -> str:
  if not run.samples:
    return _missing("samples/", "no pictures")
  pair = [run.samples[0], run.samples[-1]] if len(run.samples) > 1 else run.samples
  between = run.samples[1:-1]
  chosen = np.linspace(0, len(between) - 1, min(_STRIP, len(between))).round().astype(int)
  return (f'<div class="pair">{"".join(map(_picture, pair))}</div>'
          f'<div class="strip">{"".join(_picture(between[i]) for i in chosen)}</div>')


def _picture(path: pathlib.Path) -> str:
  return charts.picture(path, f"step {path.stem.removeprefix('step-').lstrip('0') or '0'}")


def _panels(run: Run) -> str:
  series = run.series()
  if not series:
    return _missing("metrics.jsonl", "no curves")
  span = run.rows[0]["step"], run.rows[-1]["step"]
  panels = ""
  bands = _bands(series)
  drawn_in_others = {f"{name}_{end}" for name in bands for end in ("min", "max")}
  for name, (steps, values) in series.items():
    if name in drawn_in_others:
      continue
    lost = (~np.isfinite(values)).sum()
    marker = "o" if kind(name) == "evaluation" else ""
    curve = charts.curve(steps, values, span, marker, bands.get(name))
    panels += charts.panel(name, curve, kind(name), _SHADED if name in bands else "",
                           f"{lost} not finite" if lost else "")
  return panels


def _panels_by(run: Run, measure: str) -> str:
  """The curves that have a spread, over something else than steps that every row tells."""
  panels, series = "", run.series()
  value_at = {row["step"]: row[measure] for row in run.rows if measure in row}
  for name, (lowest, highest) in _bands(series).items():
    steps, values = series[name]
    if all(step in value_at for step in steps):
      at = np.array([value_at[step] for step in steps], float)
      curve = charts.curve(at, values, None, "o", ((at, lowest[1]), (at, highest[1])))
      panels += charts.panel(name, curve, kind(name), _SHADED)
  return panels


def _bands(series: dict[str, charts.Series]) -> dict[str, tuple[charts.Series, charts.Series]]:
  """`name_min` and `name_max` by the `name` that was logged with them, where all are finite."""
  found = {}
  for name, (steps, _) in series.items():
    lowest, highest = series.get(f"{name}_min"), series.get(f"{name}_max")
    if lowest and highest and all(np.array_equal(end[0], steps) and np.isfinite(end[1]).all()
                                  for end in (lowest, highest)):
      found[name] = lowest, highest
  return found
