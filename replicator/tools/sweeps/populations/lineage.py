"""`lineage.png`: the metric of each population member over steps, and which members it copied."""

import dataclasses
import io
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from replicator.atomic import write_whole
from replicator.console.formatting import format_number
from replicator.tools.sweeps import space
from replicator.tools.sweeps.sweep_file import SweepFile

import numpy as np

FILE = "lineage.png"
_MOST_PANELS = 4
_LOG_FROM = 10.0  # A metric that varies by this factor gets a logarithmic axis.



@dataclasses.dataclass(frozen=True)
class Draw:
  """A member's draw for a generation: its bindings, and whose checkpoint it starts from."""

  bindings: space.Point
  parent: int = 0  # A member's number, starting at 1; 0 if it continues from its own.


Generation = Sequence[Draw]
Piece = tuple[int, int, list[tuple[int, float]]]  # Generation and member, from 0, and points.


def pieces(interval: int, generations: Sequence[Generation],
           series: Sequence[Mapping[int, float]]) -> Iterator[Piece]:
  """Yields each member's curve in each generation; a copy's curve starts at its donor's value.

  Args:
    interval: the number of steps per generation.
    generations: the draws of each generation, from the first.
    series: for each member, the metric by step; non-finite values are skipped.
  """
  for generation, members in enumerate(generations):
    begin, end = generation * interval, (generation + 1) * interval
    for member, drawn in enumerate(members):
      origin = series[drawn.parent - 1 if drawn.parent else member].get(begin, math.nan)
      points = [(begin, origin), *((step, value) for step, value in sorted(series[member].items())
                                   if begin < step <= end)]
      yield generation, member, [point for point in points if math.isfinite(point[1])]


def write(folder: pathlib.Path, file: SweepFile, generations: Sequence[Generation],
          series: Sequence[Mapping[int, float]]) -> None:
  """Draws a panel for each of the first numeric names, with curves colored by its value."""
  from matplotlib import ticker  # Slow to import.
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure
  assert file.interval
  names = [name for name, given in file.space().items() if given.kind != "choice"][:_MOST_PANELS]
  found = list(pieces(file.interval, generations, series))
  figure = Figure(figsize=(8, 3.4 * max(1, len(names))), dpi=110, layout="constrained")
  FigureCanvasAgg(figure)
  for axes, name in zip(np.ravel(figure.subplots(max(1, len(names)))), names or [""], strict=True):
    color = _colors(axes, name, file.space().get(name), generations)
    for generation, member, points in found:
      drawn = generations[generation][member]
      axes.plot(*zip(*points, strict=True) if points else ((), ()), linewidth=1.6, marker="o",
                markersize=2, color=color(drawn.bindings.get(name)))
      if drawn.parent and points:
        begin = generation * file.interval
        axes.plot([begin] * 2, [series[member].get(begin, math.nan),
                                series[drawn.parent - 1].get(begin, math.nan)], ":", color="0.5",
                  linewidth=1)
    values = np.array([value for *_, points in found for _, value in points])
    if len(values) and values.min() > 0 and values.max() > _LOG_FROM * values.min():
      axes.set_yscale("log")
      axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
      axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: format_number(value))
    axes.set_xlabel("step")
    axes.set_ylabel(file.metric)
    axes.grid(alpha=0.3)
  picture = io.BytesIO()
  figure.savefig(picture, format="png", metadata={"Software": None})
  write_whole(folder / FILE, picture.getvalue())


def _colors(axes: Any, name: str, given: space.Distribution | None,
            generations: Sequence[Generation]) -> Any:
  """Adds a color scale to the axes; returns a function from a name's value to its color."""
  from matplotlib import cm, colors
  if given is None:
    return lambda value: "C0"
  used = [float(drawn.bindings[name]) for generation in generations for drawn in generation]
  limits = min(used), max(used)
  scale = cm.ScalarMappable(
      colors.LogNorm(*limits) if given.kind == "log_uniform" else colors.Normalize(*limits),
      "plasma")
  axes.figure.colorbar(scale, ax=axes, label=name)
  return scale.to_rgba
