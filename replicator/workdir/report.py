"""`report.html`: one page about a run, from the files of its workdir."""

import math
import os
import pathlib
import re
from collections.abc import Iterator, Mapping

import numpy as np

from replicator import atomic
from replicator.console.formatting import format_duration, format_number
from replicator.workdir import charts, pages, reader
from replicator.workdir.charts import Series
from replicator.workdir.reader import Run, kind

_RATE = "learning_rate/"
_STRIP = 6  # Pictures between the first one and the last one.
_ELSEWHERE = ("command", "program", "program_file", "argv", "settings")  # Facts shown elsewhere.


def write_report(workdir: str | os.PathLike) -> pathlib.Path:
  """Writes `report.html` into the workdir of a run; returns its path.

  The page says which files of the workdir are missing or unreadable. Scalars that were logged with
  their lowest and highest values, `NAME_min` and `NAME_max`, are also drawn against the time and
  against other axes: the scalars that `run.json` names as "axes" or, if it names none, each
  evaluated count of steps, such as `eval/environment_steps`. Raises a UsageError if `workdir` is
  not a folder.
  """
  run = reader.read(workdir)
  pictures = run.samples
  page = pages.render(
      "report.html", title=run.folder.resolve().name,
      what=f"Training report of {run.facts.get('experiment') or 'an experiment'}",
      badges=_badges(run), tiles=_tiles(run), metrics=_metrics(run), kind=kind,
      num_corrupt=run.num_corrupt, curves=_curves(run),
      ends=[_picture(path) for path in dict.fromkeys([*pictures[:1], *pictures[-1:]])],
      between=list(map(_picture, _some(pictures[1:-1]))),
      settings=_settings(run), config=run.config, command=str(run.facts.get("command", "")),
      facts=_facts(run))
  path = run.folder / "report.html"
  atomic.write_whole(path, page)
  return path


def _badges(run: Run) -> list[pages.Badge]:
  replicas = run.facts.get("num_replicas")
  texts = [run.facts.get("strategy"),
           replicas and f"{replicas} replica{'s' if replicas != 1 else ''}",
           run.facts.get("precision")]
  look, status = run.status()
  return [pages.Badge(status, look), *(pages.Badge(str(text)) for text in texts if text)]


def _tiles(run: Run) -> dict[str, str]:
  tiles = {"steps": str(run.rows[-1]["step"])} if run.rows else {}
  timed = np.array([(row["step"], row["seconds"]) for row in run.rows if "seconds" in row])
  if len(timed) > 1:
    steps, seconds = np.diff(timed, axis=0).T
    rate = np.median(steps[seconds > 0] / seconds[seconds > 0]) if any(seconds > 0) else 0.0
    tiles["training time"] = format_duration(timed[-1, 1])
    tiles["steps per second"] = f"{rate:.3g}"
    if batch := run.facts.get("global_batch_size"):
      tiles["examples per second"] = format_number(rate * batch)
    if waits := [row["data_wait"] for row in run.rows if "data_wait" in row]:
      tiles["of the time waiting for data"] = f"{np.median(waits):.1%}"
  return tiles


def _metrics(run: Run) -> dict[str, list[float]]:
  rows = {}
  for name, (_, values) in run.series().items():
    finite = values[np.isfinite(values)]
    rows[name] = [values[-1], values[0],
                  min(finite, default=math.nan), max(finite, default=math.nan)]
  return rows


def _settings(run: Run) -> list[list[str]]:
  """The values that the user set: name, value and place, the command line first."""
  found = [list(map(str, row)) for row in run.facts.get("settings") or []
           if isinstance(row, list) and len(row) == 3]
  return sorted(found, key=lambda row: not row[2].startswith("--"))


def _facts(run: Run) -> dict[str, str]:
  return {name.replace("_", " "): _text(value) for name, value in run.facts.items()
          if name not in _ELSEWHERE and value not in (None, "", [], {})}


def _text(value: object) -> str:
  if isinstance(value, dict):
    return ", ".join(f"{key} {_text(item)}" for key, item in value.items())
  return ", ".join(map(_text, value)) if isinstance(value, list) else str(value)


def _some(pictures: list[pathlib.Path]) -> list[pathlib.Path]:
  chosen = np.linspace(0, len(pictures) - 1, min(_STRIP, len(pictures))).round().astype(int)
  return [pictures[number] for number in chosen]


def _picture(path: pathlib.Path) -> pages.Picture:
  return pages.picture(path, f"step {path.stem.removeprefix('step-').lstrip('0') or '0'}")


# ---- Curves -------------------------------------------------------------------------------------


def _curves(run: Run) -> dict[str, list[pages.Panel]]:
  """The charts by the title of their horizontal axis; steps come first."""
  series = run.series()
  bands = dict(_bands(series))
  inside_others = {f"{name}_{end}" for name in bands for end in ("min", "max")}
  rates = {name.removeprefix(_RATE): points for name, points in series.items()
           if name.startswith(_RATE) and points[1].min() != points[1].max()}
  span = (run.rows[0]["step"], run.rows[-1]["step"]) if run.rows else None
  found = {"step": [_panel(name, points, bands.get(name), span) for name, points in series.items()
                    if name not in inside_others and not name.startswith(_RATE)]}
  if rates:  # Those that change, in one chart.
    found["step"].append(pages.Panel(
        "learning_rate", charts.curves(rates, span), labels=list(rates)))
  counts = [name for name in series if re.fullmatch(r"eval/\w*_steps", name)]
  for axis in [*run.facts.get("axes", counts), "seconds"]:
    value_at = {row["step"]: row[axis] for row in run.rows if axis in row}
    if panels := [_panel(name, _moved(series[name], value_at),
                         (_moved(lowest, value_at), _moved(highest, value_at)))
                  for name, (lowest, highest) in bands.items()
                  if value_at.keys() >= set(series[name][0])]:
      found[axis.removeprefix("eval/").replace("_", " ")] = panels
  return found


def _panel(name: str, points: Series, band: tuple[Series, Series] | None,
           span: tuple[float, float] | None = None) -> pages.Panel:
  lost = (~np.isfinite(points[1])).sum()
  chart = charts.curve(*points, span, "o" if kind(name) == "evaluation" else "", band)
  return pages.Panel(name, chart, kind(name), "shaded: min to max" if band else "",
                     f"{lost} not finite" if lost else "")


def _moved(points: Series, value_at: Mapping[int, float]) -> Series:
  """A curve against another quantity, whose value at each step is in `value_at`."""
  return np.array([value_at[step] for step in points[0]], float), points[1]


def _bands(series: Mapping[str, Series]) -> Iterator[tuple[str, tuple[Series, Series]]]:
  """`NAME_min` and `NAME_max` by the `NAME` logged at the same steps, if all values are finite."""
  for name, (steps, _) in series.items():
    lowest, highest = series.get(f"{name}_min"), series.get(f"{name}_max")
    if lowest and highest and all(np.array_equal(end[0], steps) and np.isfinite(end[1]).all()
                                  for end in (lowest, highest)):
      yield name, (lowest, highest)
