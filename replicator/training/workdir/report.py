"""`report.html`: a page about a run, made from its workdir; and a short form for notebooks."""

import math
import os
import pathlib
from collections.abc import Mapping

from replicator import atomic
from replicator.console.formatting import format_duration, format_number, listed
from replicator.console.kernel import Place
from replicator.training.workdir import pages, reader
from replicator.training.workdir.charts import Series
from replicator.training.workdir.reader import Run, kind

import numpy as np

_MOST_PICTURES = 16  # Per name.
_MOST_ITEMS = 50  # Per fact, such as the classes of the data.
# Facts that are shown elsewhere, or are not useful to a reader.
_ELSEWHERE = ("command", "program", "program_file", "argv", "settings", "code", "python_state",
              "networks")


def write_report(workdir: str | os.PathLike) -> pathlib.Path:
  """Writes `report.html` into the workdir of a run; returns its path.

  The page lists the missing or unreadable files of the workdir. Scalars that were logged with
  `NAME_min` and `NAME_max` are also plotted over time, and over the scalars listed as "axes" in
  `run.json`, such as `eval/environment_steps`. Raises a UsageError if `workdir` is not a folder.
  """
  run = reader.read(workdir)
  page = pages.render(
      "report.html", title=run.folder.resolve().name,
      what=f"Training report of {run.facts.get('experiment') or 'an experiment'}",
      badges=_badges(run), tiles=_tiles(run), metrics=_metrics(run), kind=kind,
      num_corrupt=run.num_corrupt, curves=_curves(run), films=_films(run),
      # The user's settings: name, value and where it was set, the command line first.
      settings=sorted(run.facts.get("settings") or [], key=lambda row: not row[2].startswith("--")),
      networks=_networks(run), config=run.config, command=str(run.facts.get("command", "")),
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
      tiles["examples per second"] = format_number(rate * batch * run.facts.get("batches", 1))
  return tiles


def _metrics(run: Run) -> dict[str, list[float]]:
  rows = {}
  for name, (_, values) in run.series().items():
    finite = values[np.isfinite(values)]
    rows[name] = [values[-1], values[0],
                  min(finite, default=math.nan), max(finite, default=math.nan)]
  return rows


def _networks(run: Run) -> dict[str, list[tuple[str, str, int]]]:
  """Returns each network's layers, as `training.networks` lists them: path, weights, parameters."""
  found: dict[str, list[tuple[str, str, int]]] = {}
  for network, layer, weights, parameters in run.facts.get("networks", []):
    found.setdefault(network, []).append((layer, weights, parameters))
  return found


def _text(value: object) -> str:
  if isinstance(value, dict):
    return listed([str(key) if item is None else f"{key} {_text(item)}"
                   for key, item in value.items()], _MOST_ITEMS)
  return listed(list(map(_text, value)), _MOST_ITEMS) if isinstance(value, list) else str(value)


def _films(run: Run) -> list[list[pages.Picture]]:
  """Returns the first, the last and some pictures in between, of the samples and each other image.
  """
  films = []
  for name, paths in {"": run.samples, **run.images}.items():
    count = len(paths)
    chosen = np.linspace(0, count - 1, min(_MOST_PICTURES, count)).round().astype(int)
    films.append([pages.picture(path, f"{name}{', ' if name else ''}step {step}")
                  for path in (paths[number] for number in chosen)
                  if (step := reader.step_of(path)) is not None])
  return [film for film in films if film]


def _curves(run: Run) -> dict[str, list[pages.Panel]]:
  """Returns the charts by the title of their x-axis; steps come first."""
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
  """Returns the values of `NAME_min` and `NAME_max`; empty unless logged with every `NAME`."""
  ends = [series[f"{name}_{end}"] for end in ("min", "max") if f"{name}_{end}" in series]
  both = len(ends) == 2 and all(np.array_equal(at, series[name][0]) for at, _ in ends)
  return [values for _, values in ends] if both else []


# ---- Under the cell of a notebook that trains the run -------------------------------------------


def show_report(workdir: str | os.PathLike, place: Place) -> None:
  """Shows a short `report.html`: the losses, the evaluations and the latest picture."""
  run = reader.read(workdir)
  shown = {name: points for name, points in run.series().items() if name not in reader.TIMES
           and (name.startswith(("eval/", "loss/")) or "/" not in name)}
  panels = [(pages.panel(name, [(steps, values)], (run.rows[0]["step"], run.rows[-1]["step"])),
             values[-1]) for name, (steps, values) in shown.items()]
  page = pages.render("notebook.html", panels=panels, pictures=[
      pages.picture(path, path.stem) for path in run.samples[-1:]])
  place.show(page, f"curves and pictures: {run.folder / 'report.html'}")
