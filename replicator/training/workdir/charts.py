"""Curves as inline SVG, in the colors of the page around them: CSS variables of its style sheet."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from replicator.console.formatting import format_number

import numpy as np

if TYPE_CHECKING:  # Slow to import; only a process that draws needs it.
  from matplotlib.axes import Axes

Series = tuple[np.ndarray, np.ndarray]  # Steps `[n]` and values `[n]`.

_SMOOTH_FROM = 40  # Shorter curves are drawn as they are.
_LOG_FROM = 30.0   # A curve that falls by this factor gets a logarithmic axis.
_SIZE = (3.6, 1.9)  # Width and height of a chart, in inches.
_SVG_DPI = 72      # The dots of an inch in SVG.
_MOST_TITLES = 60  # Places of a curve that show their values.
_NUM_COLORS = 8    # As in `templates/style.css`.
_DASHES = ("", "6 3", "2 2", "8 2 2 2")  # In points; they change when the colors are used up.
_VARIABLES = ("faint", "line", "ink", *(f"curve{i}" for i in range(_NUM_COLORS)))


def curves(series: Sequence[Series], span: tuple[float, float] | None = None, marker: str = "",
           band: Sequence[np.ndarray] = ()) -> str:
  """Draws curves into one chart, as inline SVG.

  Several curves have the colors of `key`; a single one has the color `--ink` of the element around
  it. Values that are not finite are left out; the SVG is empty if none is finite.

  Args:
    series: the curves; one without points keeps the colors of the others as they are.
    span: the first and the last step of the axis, by default those of the curves.
    marker: a matplotlib marker at every point.
    band: the lowest and the highest values of a single curve; the area between them is shaded.
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
      smooth = smoothed(values, longest)
      if smooth is not values:  # Outliers are clipped, because they would flatten the curve.
        raw = np.clip(values, *np.percentile(values, [1, 99]))
        axes.plot(steps, raw, color=color, linewidth=0.8, alpha=0.3)
      lengths = [float(length) / 2 for length in _dashes(number).split()]
      axes.plot(steps, smooth, color=color, linewidth=1.5,
                linestyle=(0, lengths) if lengths else "-",
                marker=marker or ("o" if len(values) == 1 else ""), markersize=4, clip_on=False)
      hovered.append((steps, smooth, values))
    if band:
      lowest, highest = band
      axes.fill_between(series[0][0], lowest, highest, color=_color("ink"), alpha=0.15, linewidth=0)
    shown = np.concatenate([*(values for _, values in drawn), *band])
    _set_axes(axes, shown[np.isfinite(shown)])
    all_steps = np.concatenate([steps for steps, _ in drawn])
    first, last = span or (all_steps.min(), all_steps.max())
    axes.set_xlim(first, max(last, first + 1))
    titles = "".join(_titles(axes, *points) for points in hovered)
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
  svg = file.getvalue()
  for variable in _VARIABLES:
    svg = svg.replace(_color(variable), f"var(--{variable})")
  return svg[svg.index("<svg"):].replace("</svg>", f'<g class="values">{titles}</g></svg>')


def key(number: int) -> str:
  """Draws a piece of the line of the curve `number` of `curves`, as inline SVG."""
  return (f'<svg class="key" viewBox="0 0 22 6"><path d="M1 3h20" '
          f'stroke="var(--curve{number % _NUM_COLORS})" stroke-width="2.5" '
          f'stroke-dasharray="{_dashes(number)}"/></svg>')


def _color(variable: str) -> str:
  """The color that stands for the CSS variable `--variable` until the SVG is written."""
  return f"#0400{_VARIABLES.index(variable):02x}"


def _dashes(number: int) -> str:
  return _DASHES[number // _NUM_COLORS % len(_DASHES)]


def _titles(axes: "Axes", steps: np.ndarray, heights: np.ndarray, values: np.ndarray) -> str:
  """Places on a curve that show its values under the pointer: `[n], [n], [n]`, some of the n."""
  chosen = np.linspace(0, len(steps) - 1, min(_MOST_TITLES, len(steps))).round().astype(int)
  places = axes.transData.transform(np.stack([steps, heights], 1)[chosen])
  _, height = axes.figure.bbox.size
  return "".join(
      f'<circle cx="{x:.1f}" cy="{height - y:.1f}" r="4"><title>{format_number(step)}: '
      f"{format_number(value)}</title></circle>"
      for (x, y), step, value in zip(places, steps[chosen], values[chosen], strict=True))


def _set_axes(axes: "Axes", values: np.ndarray) -> None:
  from matplotlib import ticker
  if min(values) > 0 and max(values) > _LOG_FROM * np.percentile(values, 10):
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


def smoothed(values: np.ndarray, longest: int) -> np.ndarray:
  """A centered moving average over 1/25 of a chart's `longest` curve, `[n] -> [n]`.

  Near both ends it is over the points that there are. `values` are returned as they are if the
  longest curve has fewer than 40 points, or these are fewer than the average is over.
  """
  width = max(3, longest // 25 | 1)
  if longest < _SMOOTH_FROM or len(values) < width:
    return values
  window = np.ones(width)
  counts = np.convolve(np.ones(len(values)), window, "same")
  return np.convolve(values, window, "same") / counts
