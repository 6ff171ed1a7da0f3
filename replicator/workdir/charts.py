"""What the pages about runs are made of: curves as inline SVG, pictures, and one style.

A page is one file that needs no other and no network. Its curves take the colors of its style
sheet, which has one set for light and one for dark screens.
"""

import base64
import io
import pathlib
import string
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from replicator.console.formatting import format_number

Series = tuple[np.ndarray, np.ndarray]
"""Steps `[n]` and values `[n]`."""

_SMOOTH_FROM = 40  # Curves of fewer points are drawn as they are.
_LOG_FROM = 30.0   # A fall by this factor asks for a logarithmic axis.
_LIGHT = ("#2563eb", "#c2500c", "#15803d", "#a21caf", "#0e7490", "#a16207", "#e11d74", "#57606a")
_DARK = ("#6ba4ff", "#ff9d57", "#4ade80", "#e58cf0", "#38d0e8", "#facc15", "#ff8bb8", "#b3bcc8")
_DASHES = ("", "6 3", "2 2", "8 2 2 2")  # In points; when the colors are used up.
# Colors that matplotlib writes, and what the page's style sheet then makes of them.
_TEXT, _GRID, _INK = "#010101", "#020202", "#030303"
_VARIABLES = {_TEXT: "var(--faint)", _GRID: "var(--line)", _INK: "var(--ink)",
              **{f"#0400{i:02x}": f"var(--curve{i})" for i in range(len(_LIGHT))}}


def curve(steps: np.ndarray, values: np.ndarray, span: tuple[float, float] | None = None,
          marker: str = "", band: tuple[Series, Series] | None = None) -> str:
  """One curve as inline SVG, in the color `--ink` of the element around it.

  Args:
    steps: `[n]`.
    values: `[n]`; those that are not finite are left out, and with none left it is empty.
    span: the first and last step of the axis; those of the curve if None.
    marker: of matplotlib, on every point.
    band: two finite curves of the same steps, between which all is shaded.
  """
  return _drawn([(steps, values)], [_INK], span, marker, band)


def curves(series: Mapping[str, Series], span: tuple[float, float] | None = None,
           marker: str = "") -> str:
  """Curves over one another as inline SVG, in the colors that `legend` gives their labels.

  Draw a curve without points as an empty series, so that its label keeps its color.
  """
  return _drawn(list(series.values()), [f"#0400{i % len(_LIGHT):02x}" for i in range(len(series))],
                span, marker)


def legend(labels: Sequence[str]) -> str:
  """The labels of `curves`, each behind a piece of its line."""
  return '<p class="legend">' + "".join(
      f"<span>{key(i)}{escape(label)}</span>" for i, label in enumerate(labels)) + "</p>"


def key(number: int) -> str:
  """A piece of the line of the curve `number` of `curves`."""
  color, dashes = number % len(_LIGHT), _DASHES[number // len(_LIGHT) % len(_DASHES)]
  return (f'<svg class="key" viewBox="0 0 22 6"><path d="M1 3h20" stroke="var(--curve{color})" '
          f'stroke-width="2.5" stroke-dasharray="{dashes}"/></svg>')


def panel(caption: str, content: str, kind: str = "training", note: str = "",
          warning: str = "") -> str:
  """A chart in its frame; `kind` is 'training' or 'evaluation', and colors a single curve."""
  small = f"<small>{escape(note)}</small>" if note else ""
  small += f'<small class="bad">{escape(warning)}</small>' if warning else ""
  return (f'<figure class="{kind}"><figcaption>{escape(caption)}{small}</figcaption>'
          f"{content}</figure>")


def picture(path: pathlib.Path, caption: str) -> str:
  """A PNG file, held in the page."""
  content = path.read_bytes()
  width = int.from_bytes(content[16:20], "big")    # PNG: a signature, then the IHDR chunk.
  look = ' class="coarse"' if width < 400 else ""  # Enlarged, show pixels and not a blur.
  data = base64.b64encode(content).decode()
  return (f'<figure><img{look} alt="samples: {escape(caption)}" src="data:image/png;base64,{data}">'
          f"<figcaption>{escape(caption)}</figcaption></figure>")


def section(title: str, content: str, kind: str = "card") -> str:
  """A part of a page; `kind` is 'card' or 'panels'."""
  return f'<h2>{escape(title)}</h2><div class="{kind}">{content}</div>\n'


def page(title: str, what: str, body: str, badges: str = "") -> str:
  """A whole page of HTML: `what` says of which sort it is, `badges` are `<span>`s."""
  palette = lambda colors: " ".join(f"--curve{i}: {color};" for i, color in enumerate(colors))
  return _PAGE.substitute(title=escape(title), what=escape(what), badges=badges, body=body,
                          light=palette(_LIGHT), dark=palette(_DARK))


def _drawn(series: Sequence[Series], colors: Sequence[str], span: tuple[float, float] | None,
           marker: str, band: tuple[Series, Series] | None = None) -> str:
  """Inline SVG in the colors and the type of the page; every plot has the same place."""
  from matplotlib import rc_context
  from matplotlib.figure import Figure
  series = [(steps[np.isfinite(values)], values[np.isfinite(values)]) for steps, values in series]
  if not any(len(values) for _, values in series):
    return ""
  first, last = span or (min(steps.min() for steps, _ in series if len(steps)),
                         max(steps.max() for steps, _ in series if len(steps)))
  with rc_context({"svg.fonttype": "none", "font.size": 8}):
    figure = Figure(figsize=(3.6, 1.9))
    axes = figure.add_axes((0.16, 0.12, 0.81, 0.83))
    for number, ((steps, values), color) in enumerate(zip(series, colors, strict=True)):
      if len(values):
        smooth = smoothed(values, max(len(others) for _, others in series))
        _add(axes, steps, values, smooth, color, number // len(_LIGHT), marker)
    if band:
      (at, lowest), (_, highest) = band
      axes.fill_between(at, lowest, highest, color=colors[0], alpha=0.15, linewidth=0)
      series += band
    _set_axes(axes, np.concatenate([values for _, values in series]))
    axes.set_xlim(first, max(last, first + 1))
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
  svg = file.getvalue()
  for color, variable in _VARIABLES.items():
    svg = svg.replace(color, variable)
  return svg[svg.index("<svg"):]


def _add(axes, steps: np.ndarray, values: np.ndarray, smooth: np.ndarray, color: str, dash: int,
         marker: str) -> None:
  if smooth is not values:  # An outlier must not flatten the curve: it stays at the edge.
    raw = np.clip(values, *np.percentile(values, [1, 99]))
    axes.plot(steps, raw, color=color, linewidth=0.8, alpha=0.3)
  dashes = _DASHES[dash % len(_DASHES)]
  style = (0, [float(length) / 2 for length in dashes.split()]) if dashes else "-"
  axes.plot(steps, smooth, color=color, linewidth=1.5, linestyle=style,
            marker=marker or ("o" if len(values) == 1 else ""), markersize=4, clip_on=False)


def _set_axes(axes, values: np.ndarray) -> None:
  from matplotlib import ticker
  if min(values) > 0 and max(values) > _LOG_FROM * np.percentile(values, 10):
    axes.set_yscale("log")
    few_decades = max(values) < 1e3 * min(values)
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if few_decades else (1,)))
    axes.minorticks_off()
  axes.yaxis.set_major_formatter(lambda value, _: format_number(value))
  axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
  axes.xaxis.set_major_locator(ticker.MaxNLocator(6, integer=True))
  axes.tick_params(length=0, pad=5, colors=_TEXT)
  axes.grid(axis="y", color=_GRID)
  axes.set_frame_on(False)


def smoothed(values: np.ndarray, longest: int | None = None) -> np.ndarray:
  """A centered moving average over a twenty-fifth of the curve, `[n] -> [n]`.

  A curve of few points comes back as it is.

  Args:
    values: of the curve.
    longest: points of the longest curve in the chart, whose window they all have; None for `n`.
  """
  longest = longest or len(values)
  width = max(3, longest // 25 | 1)
  if longest < _SMOOTH_FROM or len(values) < width:
    return values
  middle = np.convolve(values, np.ones(width) / width, "valid")
  at = np.arange(width)  # At both ends, where no window fits, the line through the last window.
  head, tail = (np.polyval(np.polyfit(at, end, 1), at) for end in (values[:width], values[-width:]))
  return np.concatenate([head[:width // 2], middle, tail[-(width // 2):]])


_PAGE = string.Template("""<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title: $what</title>
<style>
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --text: #1c2430; --faint: #66707f;
  --line: #e2e6ec; --training: #2563eb; --evaluation: #c2500c; --good: #15803d; --warn: #a16207;
  --bad: #c81e1e;
  $light }
@media (prefers-color-scheme: dark) { :root { --page: #0f1319; --card: #181e27; --text: #e3e8ef;
  --faint: #929dad; --line: #2a323e; --training: #6ba4ff; --evaluation: #ff9d57; --good: #4ade80;
  --warn: #facc15; --bad: #ff7b7b;
  $dark } }
* { box-sizing: border-box; }
body { max-width: 1160px; margin: 0 auto; padding: 40px 24px 64px; background: var(--page);
  color: var(--text); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { margin: 0 0 12px; font-size: 34px; line-height: 1.2; letter-spacing: -.02em; }
h2 { margin: 40px 0 12px; font-size: 18px; }
header small, .tiles div, figcaption { color: var(--faint); font-size: 13px; }
.badges span { display: inline-block; margin: 0 8px 8px 0; padding: 2px 12px; font-size: 13px;
  border: 1px solid var(--line); border-radius: 99px; background: var(--card); }
.badges span:first-child { font-weight: 600; border-color: currentColor; }
.good { color: var(--good); } .warn { color: var(--warn); } .bad { color: var(--bad); }
.training { --ink: var(--training); } .evaluation { --ink: var(--evaluation); }
.card, .panels figure, .tiles div { padding: 14px 18px; border: 1px solid var(--line);
  border-radius: 10px; background: var(--card); overflow-x: auto; }
.tiles, .panels, .pair, .strip { display: grid; gap: 16px; }
.tiles, .strip, table + p { margin-top: 16px; }
.tiles { grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)); }
.panels { grid-template-columns: repeat(auto-fill, minmax(min(320px, 100%), 1fr)); }
.pair { grid-template-columns: repeat(auto-fit, minmax(min(320px, 100%), 1fr)); }
.strip { grid-template-columns: repeat(auto-fit, minmax(120px, 1fr)); }
.tiles b { display: block; color: var(--text); font-size: 26px; line-height: 1.3; }
figure, p { margin: 0; min-width: 0; }
.panels > p { grid-column: 1 / -1; }
figcaption { overflow-wrap: anywhere; }
.panels figcaption { color: var(--text); font-weight: 600; }
.panels small { float: right; margin-left: 8px; font-weight: 400; }
svg, img { display: block; width: 100%; height: auto; }
svg text { font-family: inherit !important; fill: var(--faint) !important; }
img { max-height: 640px; object-fit: contain; border-radius: 6px; }
img.coarse { image-rendering: pixelated; }
table { width: 100%; border-collapse: collapse; font-size: 14px; }
th, td { padding: 5px 0; border-top: 1px solid var(--line); text-align: left;
  vertical-align: top; font-weight: 400; }
.numbers tr:first-child th { border: 0; color: var(--faint); }
.numbers td, .numbers th + th { padding-left: 16px; text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.numbers [class], .numbers th + td { font-weight: 600; }
.numbers [class]::before { content: ""; display: inline-block; width: 8px; height: 8px;
  margin-right: 10px; border-radius: 50%; background: var(--ink); }
.runs th, .runs td { padding-right: 16px; overflow-wrap: anywhere; }
.runs th { border: 0; font-weight: 600; }
.runs td:first-child { color: var(--faint); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 20px; margin-bottom: 12px; font-size: 14px; }
svg.key { display: inline-block; width: 22px; height: 6px; margin-right: 8px;
  vertical-align: middle; }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere;
  font: 13px/1.55 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre i { color: var(--faint); font-style: normal; }
pre + table { margin-top: 14px; }
pre + table th { width: 180px; color: var(--faint); }
</style>
<header><small>$what</small><h1>$title</h1><div class="badges">$badges</div></header>
$body""")
