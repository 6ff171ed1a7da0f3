"""Curves as inline SVG, in the colors of the page around them: CSS variables of its style sheet."""

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from replicator.console.formatting import format_number

if TYPE_CHECKING:  # Slow to import; only a process that draws needs it.
  from matplotlib.axes import Axes
  from matplotlib.figure import Figure

Series = tuple[np.ndarray, np.ndarray]  # Steps `[n]` and values `[n]`.

_SMOOTH_FROM = 40  # Shorter curves are drawn as they are.
_LOG_FROM = 30.0   # A curve that falls by this factor gets a logarithmic axis.
_SIZE = (3.6, 1.9)  # Width and height of a chart, in inches.
_SVG_DPI = 72      # The dots of an inch in SVG.
_MOST_TITLES = 60  # Places of a curve that show their values.
_NUM_COLORS = 8    # As in `templates/style.css`.
_DASHES = ("", "6 3", "2 2", "8 2 2 2")  # In points; they change when the colors are used up.
_VARIABLES = ("faint", "line", "ink", "card", "training", "evaluation",
              *(f"curve{i}" for i in range(_NUM_COLORS)))


def color(variable: str) -> str:
  """The color to draw with in matplotlib so that `as_svg` writes the CSS variable `--variable`.

  There are 'faint' (text), 'line' (grid), 'ink' (a single curve), 'card' (the background),
  'training', 'evaluation', and 'curve0' to 'curve7'.
  """
  return f"#0400{_VARIABLES.index(variable):02x}"


def as_svg(figure: "Figure") -> str:
  """A figure as inline SVG, in the font and the colors of the page around it."""
  from matplotlib import rc_context
  file = io.StringIO()
  with rc_context({"svg.fonttype": "none"}):
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
  svg = file.getvalue()
  for variable in _VARIABLES:
    svg = svg.replace(color(variable), f"var(--{variable})")
  return svg[svg.index("<svg"):]


def curve(steps: np.ndarray, values: np.ndarray, span: tuple[float, float] | None = None,
          marker: str = "", band: tuple[Series, Series] | None = None) -> str:
  """Draws one curve, as inline SVG, in the color `--ink` of the element around it.

  The `steps` and `values` are `[n]`. Values that are not finite are left out; the SVG is empty if
  none is finite. The axis goes from the first to the last step of `span`, by default those of the
  curve. Every point has the matplotlib `marker`. The area between the two finite curves of `band`,
  which are at the same steps, is shaded.
  """
  return _draw([(steps, values)], [color("ink")], span, marker, band)


def curves(series: Mapping[str, Series], span: tuple[float, float] | None = None,
           marker: str = "") -> str:
  """Draws labeled curves into one chart; the legend of a page shows the same colors.

  A curve without points is an empty series, so that the other labels keep their colors.
  """
  colors = [color(f"curve{number % _NUM_COLORS}") for number in range(len(series))]
  return _draw(list(series.values()), colors, span, marker)


def key(number: int) -> str:
  """Draws a piece of the line of the curve `number` of `curves`, as inline SVG."""
  dashes = _DASHES[number // _NUM_COLORS % len(_DASHES)]
  return (f'<svg class="key" viewBox="0 0 22 6"><path d="M1 3h20" '
          f'stroke="var(--curve{number % _NUM_COLORS})" stroke-width="2.5" '
          f'stroke-dasharray="{dashes}"/></svg>')


def _draw(series: Sequence[Series], colors: Sequence[str], span: tuple[float, float] | None,
          marker: str, band: tuple[Series, Series] | None = None) -> str:
  from matplotlib import rc_context
  from matplotlib.figure import Figure
  series = [(steps[np.isfinite(values)], values[np.isfinite(values)]) for steps, values in series]
  drawn = [points for points in series if len(points[0])]
  if not drawn:
    return ""
  first, last = span or (min(steps.min() for steps, _ in drawn),
                         max(steps.max() for steps, _ in drawn))
  longest = max(len(values) for _, values in drawn)
  with rc_context({"font.size": 8}):
    width, height = _SIZE
    figure = Figure(figsize=_SIZE, dpi=_SVG_DPI)
    hovered = []
    axes = figure.add_axes(  # With the same margins in every chart.
        (0.576 / width, 0.228 / height, 1 - 0.684 / width, 1 - 0.323 / height))
    for number, ((steps, values), its_color) in enumerate(zip(series, colors, strict=True)):
      if not len(values):
        continue
      smooth = smoothed(values, longest)
      if smooth is not values:  # Outliers are clipped, because they would flatten the curve.
        raw = np.clip(values, *np.percentile(values, [1, 99]))
        axes.plot(steps, raw, color=its_color, linewidth=0.8, alpha=0.3)
      dashes = _DASHES[number // _NUM_COLORS % len(_DASHES)]
      style = (0, [float(length) / 2 for length in dashes.split()]) if dashes else "-"
      axes.plot(steps, smooth, color=its_color, linewidth=1.5, linestyle=style,
                marker=marker or ("o" if len(values) == 1 else ""), markersize=4, clip_on=False)
      hovered.append((steps, smooth, values))
    if band:
      (at, lowest), (_, highest) = band
      axes.fill_between(at, lowest, highest, color=colors[0], alpha=0.15, linewidth=0)
      drawn += band
    _set_axes(axes, np.concatenate([values for _, values in drawn]))
    axes.set_xlim(first, max(last, first + 1))
    titles = "".join(_titles(axes, *points) for points in hovered)
    return as_svg(figure).replace("</svg>", f'<g class="values">{titles}</g></svg>')


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
  elif np.array_equal(values, np.round(values)):  # A count.
    axes.yaxis.set_major_locator(ticker.MaxNLocator(6, integer=True, min_n_ticks=1))
  axes.yaxis.set_major_formatter(lambda value, _: format_number(value))
  axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
  axes.xaxis.set_major_locator(ticker.MaxNLocator(6, integer=True))
  axes.tick_params(length=0, pad=5, colors=color("faint"))
  axes.grid(axis="y", color=color("line"))
  axes.set_frame_on(False)


def smoothed(values: np.ndarray, longest: int | None = None) -> np.ndarray:
  """A centered moving average over 1/25 of the longest curve in the chart, `[n] -> [n]`.

  That curve has `longest` points (by default `n`); if fewer than 40, `values` is returned as it is.
  """
  longest = longest or len(values)
  width = max(3, longest // 25 | 1)
  if longest < _SMOOTH_FROM or len(values) < width:
    return values
  middle = np.convolve(values, np.ones(width) / width, "valid")
  at = np.arange(width)  # At both ends no window fits: a line through the last window continues.
  head, tail = (np.polyval(np.polyfit(at, end, 1), at) for end in (values[:width], values[-width:]))
  return np.concatenate([head[:width // 2], middle, tail[-(width // 2):]])
