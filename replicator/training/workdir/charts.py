"""Draws curves as inline SVG, colored by CSS variables of the page's style sheet."""

import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from replicator.console.formatting import format_number

import numpy as np

if TYPE_CHECKING:  # Slow to import, and only needed for drawing.
  from matplotlib.axes import Axes

Series = tuple[np.ndarray, np.ndarray]  # Steps `[n]` and values `[n]`.

_SMOOTH_FROM = 40  # Shorter curves are drawn as they are.
_LOG_FROM = 30.0   # A curve that falls by this factor gets a logarithmic axis.
_SIZE = (3.6, 1.9)  # Width and height of a chart, in inches.
_SVG_DPI = 72      # Dots per inch in SVG.
_MOST_POINTS = 2000  # Per curve in an enlarged chart.
_ID = "replicator-curve-"  # Prefix of a curve's ID, until it becomes a class.
_MOST_TITLES = 60  # Points per curve that show their values.
_NUM_COLORS = 8    # As in `templates/style.css`.
_DASHES = ("", "6 3", "2 2", "8 2 2 2")  # In points; the next one is used when the colors run out.
_VARIABLES = ("faint", "line", "ink", *(f"curve{i}" for i in range(_NUM_COLORS)))


def curves(series: Sequence[Series], span: tuple[float, float] | None = None, marker: str = "",
           band: Sequence[np.ndarray] = (), smooth: bool = True) -> str:
  """Draws curves in one chart, as inline SVG.

  Several curves get the colors of `key`; a single curve gets the `--ink` color of the enclosing
  element. Skips values that are not finite; returns "" if none is finite.

  Args:
    series: the curves; an empty one still uses up a color.
    span: the first and last step of the axis; by default, those of the curves.
    marker: a matplotlib marker for the points of short curves.
    band: the minimum and maximum of a single curve; the area between them is shaded.
    smooth: whether to draw a moving average over the raw values of a long curve.
  """
  from matplotlib import rc_context
  from matplotlib.figure import Figure
  finite = [(steps[np.isfinite(values)], values[np.isfinite(values)]) for steps, values in series]
  drawn = [points for points in finite if len(points[0])]
  if not drawn:
    return ""
  longest = max(len(values) for _, values in drawn)
  with rc_context({"font.size": 8, "svg.fonttype": "none"}):
    width, height = _SIZE
    figure = Figure(figsize=_SIZE, dpi=_SVG_DPI)
    axes = figure.add_axes(  # With the same margins in every chart.
        (0.576 / width, 0.228 / height, 1 - 0.684 / width, 1 - 0.323 / height))
    hovered = []
    for number, (steps, values) in enumerate(finite):
      if not len(values):
        continue
      color = _color("ink" if len(series) == 1 else f"curve{number % _NUM_COLORS}")
      heights = smoothed(values, longest) if smooth else values
      if heights is not values:  # Clips outliers, which would flatten the curve.
        raw = np.clip(values, *np.percentile(values, [1, 99]))
        axes.plot(steps, raw, color=color, linewidth=0.8, alpha=0.3, gid=f"{_ID}{number}")
      lengths = [float(length) / 2 for length in _dashes(number).split()]
      mark = "o" if len(values) == 1 else marker if longest < _SMOOTH_FROM else ""
      axes.plot(steps, heights, color=color, linewidth=1.5, gid=f"{_ID}{number}", marker=mark,
                linestyle=(0, lengths) if lengths else "-", markersize=4, clip_on=False)
      hovered.append((number, steps, heights, values))
    if band:
      lowest, highest = band
      axes.fill_between(series[0][0], lowest, highest, color=_color("ink"), alpha=0.15, linewidth=0)
    shown = np.concatenate([*(values for _, values in drawn), *band])
    _set_axes(axes, shown[np.isfinite(shown)])
    all_steps = np.concatenate([steps for steps, _ in drawn])
    first, last = span or (all_steps.min(), all_steps.max())
    axes.set_xlim(first, max(last, first + 1))
    titles = "".join(f'<g class="curve{number}">{_titles(axes, *points)}</g>'
                     for number, *points in hovered)
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
  svg = file.getvalue()
  for variable in _VARIABLES:
    svg = svg.replace(_color(variable), f"var(--{variable})")
  svg = re.sub(rf'id="{_ID}(\d+)"', r'class="curve\1"', svg)
  return svg[svg.index("<svg"):].replace("</svg>", f'<g class="values">{titles}</g></svg>')


def is_exact(name: str, series: Sequence[Series]) -> bool:
  """Returns whether a metric has no noise: it is a learning rate, or only rises or only falls."""
  return name.startswith("learning_rate/") or all(
      bool(np.all(changes >= 0) or np.all(changes <= 0))
      for changes in (np.diff(values[np.isfinite(values)]) for _, values in series))


def data(series: Sequence[Series], names: Sequence[str] = (),
         span: tuple[float, float] | None = None, band: Sequence[np.ndarray] = (),
         smooth: bool = True) -> dict[str, Any] | None:
  """Returns the same curves as JSON data for `templates/page.js`; None if no value is finite."""
  finite = [(steps[np.isfinite(values)], values[np.isfinite(values)]) for steps, values in series]
  steps = np.concatenate([of_curve for of_curve, _ in finite])
  if not len(steps):
    return None
  longest = max(len(values) for _, values in finite)
  curves = []
  for number, (at, values) in enumerate(finite):
    curve = {"label": names[number] if names else "", "dash": _dashes(number),
             "color": f"var(--{'ink' if len(series) == 1 else f'curve{number % _NUM_COLORS}'})",
             "points": _points(at, values)}
    if smooth and (means := smoothed(values, longest)) is not values:
      curve["smooth"] = _points(at, means)
    curves.append(curve)
  first, last = span or (steps.min(), steps.max())
  return {"curves": curves, "span": [float(first), float(max(last, first + 1))],
          "integer": bool(np.all(steps == np.round(steps))),
          "is_log": _is_logarithmic(np.concatenate([values for _, values in finite])),
          **({"band": _points(series[0][0], *band)} if band else {})}


def _points(steps: np.ndarray, *columns: np.ndarray) -> list[list[float]]:
  """Thins out `[n], [n], ... -> [[step, value, ...]]`, keeping extremes of the first column."""
  chosen = np.arange(len(steps))
  if len(chosen) > _MOST_POINTS:
    parts = np.array_split(chosen, _MOST_POINTS // 2)
    chosen = np.unique([part[find(columns[0][part])] for part in parts
                        for find in (np.argmin, np.argmax)])
  rows = np.stack([steps, *columns], 1)[chosen]
  return [[float(f"{x:.6g}") for x in row] for row in rows[np.isfinite(rows).all(1)]]


def key(number: int) -> str:
  """Draws the legend key of the curve `number` of `curves`, as inline SVG."""
  return (f'<svg class="key" viewBox="0 0 22 6"><path d="M1 3h20" '
          f'stroke="var(--curve{number % _NUM_COLORS})" stroke-width="2.5" '
          f'stroke-dasharray="{_dashes(number)}"/></svg>')


def _color(variable: str) -> str:
  """Returns a placeholder color, which `--variable` replaces in the final SVG."""
  return f"#0400{_VARIABLES.index(variable):02x}"


def _dashes(number: int) -> str:
  return _DASHES[number // _NUM_COLORS % len(_DASHES)]


def _titles(axes: "Axes", steps: np.ndarray, heights: np.ndarray, values: np.ndarray) -> str:
  """Draws hover targets that show the values at some of the `[n]` points of a curve."""
  chosen = np.linspace(0, len(steps) - 1, min(_MOST_TITLES, len(steps))).round().astype(int)
  places = axes.transData.transform(np.stack([steps, heights], 1)[chosen])
  _, height = axes.figure.bbox.size
  return "".join(
      f'<circle cx="{x:.1f}" cy="{height - y:.1f}" r="4"><title>{format_number(step)}: '
      f"{format_number(value)}</title></circle>"
      for (x, y), step, value in zip(places, steps[chosen], values[chosen], strict=True))


def _set_axes(axes: "Axes", values: np.ndarray) -> None:
  from matplotlib import ticker
  if _is_logarithmic(values):
    axes.set_yscale("log")
    few_decades = max(values) < 1e3 * min(values)
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if few_decades else (1,)))
    axes.minorticks_off()
  axes.yaxis.set_major_formatter(lambda value, _: format_number(value))
  axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
  axes.xaxis.set_major_locator(ticker.MaxNLocator(6, integer=True))
  axes.tick_params(length=0, pad=5, colors=_color("faint"))
  axes.grid(axis="y", color=_color("line"))
  axes.set_frame_on(False)


def _is_logarithmic(values: np.ndarray) -> bool:
  return bool(min(values) > 0 and max(values) > _LOG_FROM * np.percentile(values, 10))


def smoothed(values: np.ndarray, longest: int) -> np.ndarray:
  """Returns a centered moving average over 1/25 of a chart's `longest` curve, `[n] -> [n]`.

  Near the ends, it averages the available points. Returns `values` unchanged if the longest curve
  has fewer than 40 points, or `values` has fewer points than the window.
  """
  width = max(3, longest // 25 | 1)
  if longest < _SMOOTH_FROM or len(values) < width:
    return values
  window = np.ones(width)
  counts = np.convolve(np.ones(len(values)), window, "same")
  return np.convolve(values, window, "same") / counts
