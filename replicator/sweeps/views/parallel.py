"""Drawings of a sweep: parallel coordinates, and the values of a setting over its seeds."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from replicator.console.formatting import format_number
from replicator.sweeps import space, trials
from replicator.sweeps.results import TrialRow
from replicator.sweeps.sweep_file import SweepFile
from replicator.workdir.charts import as_svg, color

_LOG_FROM = 20.0  # Values that span this factor get a logarithmic axis.
_APART = 0.07  # The smallest distance of two labels, as a share of an axis.
_MARGIN, _LETTER = 57.6, 7.0  # Points beside the outer axes, and of a letter of a title at most.


def coordinates(rows: Sequence[TrialRow], file: SweepFile) -> str:
  """A line for each trial, through an axis for each binding to its best metric, as inline SVG.

  The better a trial, the stronger its line, which links to the element `#ID` of the page. The
  drawing is empty if no trial has the metric.
  """
  from matplotlib.figure import Figure
  finite = [row for row in rows if math.isfinite(row.best)]
  if not finite:
    return ""
  names = [name for name in file.names() if all(name in row.record.bindings for row in finite)]
  short = trials.short_names(names)
  columns = {short[name]: [row.record.bindings[name] for row in finite] for name in names}
  columns[f"best {file.metric}"] = [row.best for row in finite]
  figure = Figure(figsize=(10, 3.2))
  axes = figure.add_axes((0.08, 0.04, 0.84, 0.82), xlim=(0, len(columns) - 1), ylim=(0, 1))
  axes.set_axis_off()
  heights = []
  for x, (title, values) in enumerate(columns.items()):
    at, ticks, is_log = _axis(values)
    heights.append(at)
    axes.plot([x, x], [0, 1], color=color("line"), linewidth=1, clip_on=False)
    title = f"{title} (log)" if is_log else title
    # A long title at an edge of the drawing moves inward.
    inward = max(0.0, _LETTER * len(title) / 2 - _MARGIN) * ((x == 0) - (x == len(columns) - 1))
    axes.annotate(title, (x, 1.08), (inward, 0), textcoords="offset points", ha="center",
                  weight="bold", annotation_clip=False)
    for text, height in ticks.items():  # Above the lines, on a patch of the page's color.
      patch = {"facecolor": color("card"), "alpha": 0.8, "pad": 1, "linewidth": 0}
      axes.annotate(text, (x, height), (6, 0), textcoords="offset points", va="center", zorder=3,
                    bbox=patch)
  for place, (row, line) in enumerate(zip(finite, np.transpose(heights), strict=True)):
    rank = place / max(1, len(finite) - 1)  # From 0, the best, to 1.
    axes.plot(range(len(columns)), line, color=color("evaluation" if place == 0 else "training"),
              linewidth=2.2 - rank, alpha=1 - 0.75 * rank, zorder=2 - rank, clip_on=False,
              solid_joinstyle="round", url=f"#{row.record.id}")
  return as_svg(figure)


def _axis(values: Sequence[Any]) -> tuple[list[float], dict[str, float], bool]:
  """Heights of the values in [0, 1], heights of labels, and whether the axis is logarithmic."""
  if not all(map(space.is_number, values)):
    labels = sorted(set(map(space.short_text, values)))
    spread = np.linspace(0, 1, len(labels)) if len(labels) > 1 else [0.5]
    place = dict(zip(labels, map(float, spread), strict=True))
    return [place[space.short_text(value)] for value in values], place, False
  low, high = min(values), max(values)
  is_log = low > 0 and high >= _LOG_FROM * low
  scale = math.log if is_log else float
  height = lambda value: (scale(value) - scale(low)) / ((scale(high) - scale(low)) or 1.0)
  middle = math.sqrt(low * high) if is_log else (low + high) / 2
  ticks: dict[str, float] = {}
  for value in (low, high, *(sorted(set(values)) if len(set(values)) <= 6 else [middle])):
    if all(abs(height(value) - other) >= _APART for other in ticks.values()):
      ticks[format_number(value)] = height(value)
  return [height(v) for v in values], ticks, is_log


def strip(values: np.ndarray, span: tuple[float, float]) -> str:
  """A dot for each value `[n]`, their mean and standard deviation on a line over `span`."""
  from matplotlib.figure import Figure
  if not len(values):
    return ""
  figure = Figure(figsize=(4, 0.22))
  axes = figure.add_axes((0.02, 0, 0.96, 1), xlim=(span[0], max(span[1], span[0] + 1e-12)))
  axes.set_axis_off()
  axes.axhline(0, color=color("line"), linewidth=1)
  axes.errorbar(values.mean(), 0, xerr=values.std(ddof=1) if len(values) > 1 else 0, marker="|",
                color=color("evaluation"), markersize=11, linewidth=2, markeredgewidth=2)
  axes.plot(values, np.zeros(len(values)), "o", color=color("training"), alpha=0.6, clip_on=False)
  return as_svg(figure)
