"""`report.html`: a page about a run, from the files of its workdir; and its form in a notebook."""

import math
import os
import pathlib
from collections.abc import Mapping

from replicator import atomic
from replicator.console.formatting import format_duration, format_number
from replicator.console.kernel import Place
from replicator.training.workdir import pages, reader
from replicator.training.workdir.charts import Series
from replicator.training.workdir.reader import Run, kind

import numpy as np

_MOST_PICTURES = 8
# Facts that are shown elsewhere, or mean nothing to a reader.
_ELSEWHERE = ("command", "program", "program_file", "argv", "settings", "code", "python_state")


def write_report(workdir: str | os.PathLike) -> pathlib.Path:
  """Writes `report.html` into the workdir of a run; returns its path.

  The page says which files of the workdir are missing or unreadable. Scalars that were logged with
  their lowest and highest values, `NAME_min` and `NAME_max`, are also drawn against the time, and
  against the scalars that `run.json` names as "axes", such as `eval/environment_steps`. Raises a
  UsageError if `workdir` is not a folder.
  """
  run = reader.read(workdir)
  page = pages.render(
      "report.html", title=run.folder.resolve().name,
      what=f"Training report of {run.facts.get('experiment') or 'an experiment'}",
      badges=_badges(run), tiles=_tiles(run), metrics=_metrics(run), kind=kind,
      num_corrupt=run.num_corrupt, curves=_curves(run), pictures=_pictures(run),
      # The values that the user set: name, value and place, the command line first.
      settings=sorted(run.facts.get("settings") or [], key=lambda row: not row[2].startswith("--")),
      config=run.config, command=str(run.facts.get("command", "")),
      facts={name.replace("_", " "): _text(value) for name, value in run.facts.items()
             if name not in _ELSEWHERE and value not in (None, "", [], {})})
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
  return tiles


def _metrics(run: Run) -> dict[str, list[float]]:
  rows = {}
  for name, (_, values) in run.series().items():
    finite = values[np.isfinite(values)]
    rows[name] = [values[-1], values[0],
                  min(finite, default=math.nan), max(finite, default=math.nan)]
  return rows


def _text(value: object) -> str:
  if isinstance(value, dict):
    return ", ".join(f"{key} {_text(item)}" for key, item in value.items())
  return ", ".join(map(_text, value)) if isinstance(value, list) else str(value)


def _pictures(run: Run) -> list[pages.Picture]:
  """The first and the last picture of the samples and of each other image, and some in between."""
  found = []
  for name, paths in {"": run.samples, **run.images}.items():
    count = len(paths)
    chosen = np.linspace(0, count - 1, min(_MOST_PICTURES, count)).round().astype(int)
    found += [pages.picture(path, f"{name}{', ' if name else ''}step {step}")
              for path in (paths[number] for number in chosen)
              if (step := reader.step_of(path)) is not None]
  return found


def _curves(run: Run) -> dict[str, list[pages.Panel]]:
  """The charts by the title of their horizontal axis; steps come first."""
  series = run.series()
  bands = {name: _band(name, series) for name in series}
  inside_others = {f"{name}_{end}" for name, band in bands.items() if band
                   for end in ("min", "max")}
  span = (run.rows[0]["step"], run.rows[-1]["step"]) if run.rows else None
  found = {"step": [pages.panel(name, [points], span, bands[name])
                    for name, points in series.items()
                    if name not in inside_others]}
  for axis in [*run.facts.get("axes", []), "seconds"]:
    place = {row["step"]: row[axis] for row in run.rows if axis in row}
    panels = [pages.panel(name, [(np.array([place[step] for step in steps], float), values)],
                          band=bands[name])
              for name, (steps, values) in series.items()
              if bands[name] and place.keys() >= set(steps)]
    if panels:
      found[axis.removeprefix("eval/").replace("_", " ")] = panels
  return found


def _band(name: str, series: Mapping[str, Series]) -> list[np.ndarray]:
  """The values of `NAME_min` and `NAME_max` if both were logged with each of `NAME`, or none."""
  ends = [series[f"{name}_{end}"] for end in ("min", "max") if f"{name}_{end}" in series]
  both = len(ends) == 2 and all(np.array_equal(at, series[name][0]) for at, _ in ends)
  return [values for _, values in ends] if both else []


# ---- Under the cell of a notebook that trains the run -------------------------------------------


def show_report(workdir: str | os.PathLike, place: Place) -> None:
  """Shows a short form of `report.html`: the losses, the evaluations and the newest picture."""
  run = reader.read(workdir)
  shown = {name: points for name, points in run.series().items() if name not in reader.TIMES
           and (kind(name) == "evaluation" or "/" not in name)}
  panels = [(pages.panel(name, [(steps, values)], (run.rows[0]["step"], run.rows[-1]["step"])),
             values[-1]) for name, (steps, values) in shown.items()]
  page = pages.render("notebook.html", panels=panels, pictures=[
      pages.picture(path, path.stem) for path in run.samples[-1:]])
  place.show(page, f"curves and pictures: {run.folder / 'report.html'}")
