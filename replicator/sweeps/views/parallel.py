"""Drawings that `charts` has not: parallel coordinates, and the values of a setting's seeds.

Both are SVG in the colors of the page's style sheet.
"""

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from replicator.console.formatting import format_number
from replicator.sweeps import space, trials
from replicator.sweeps.results import Row
from replicator.sweeps.sweep_file import SweepFile

_WIDTH, _TOP, _HEIGHT, _SIDE = 1000, 40, 260, 110
_LOG_FROM = 20.0  # Values that span this factor get a logarithmic axis.
_STRIP_WIDTH = 400
_LETTER = 8.5  # Of a title, at most.


class _Axis:
  """Where values are on a vertical line: 0 at its foot, 1 at its head."""

  def __init__(self, values: Sequence[Any]):
    self.is_number = all(space.is_whole(v) or isinstance(v, float) for v in values)
    self._order = sorted(set(values) if self.is_number else {_text(v) for v in values})
    self.is_log = (self.is_number and self._order[0] > 0
                   and self._order[-1] >= _LOG_FROM * self._order[0])

  def at(self, value: Any) -> float:
    """The height of a value, in [0, 1]."""
    if not self.is_number:
      return self._evenly(self._order.index(_text(value)))
    low, high, value = map(math.log if self.is_log else float,
                           (self._order[0], self._order[-1], value))
    return (value - low) / (high - low) if high > low else 0.5

  def ticks(self) -> list[tuple[float, str]]:
    """Heights and what is written there."""
    if not self.is_number:
      return [(self._evenly(i), text) for i, text in enumerate(self._order)]
    if len(self._order) <= 6:
      return [(self.at(value), format_number(value)) for value in self._order]
    low, high = self._order[0], self._order[-1]
    middle = math.sqrt(low * high) if self.is_log else (low + high) / 2
    return [(self.at(value), format_number(value)) for value in (low, middle, high)]

  def _evenly(self, index: int) -> float:
    return index / (len(self._order) - 1) if len(self._order) > 1 else 0.5


def _text(value: Any) -> str:
  return value if isinstance(value, str) else space.text_of(value)


def drawn(rows: Sequence[Row], file: SweepFile) -> str:
  """A line for each trial through an axis for each binding to its metric; the best on top.

  Empty when no trial has the metric.
  """
  finite = [row for row in rows if math.isfinite(row.best)]
  if not finite:
    return ""
  names = [name for name in file.names() if all(name in row.record.bindings for row in finite)]
  axes = [_Axis([row.record.bindings[name] for row in finite]) for name in names]
  axes.append(_Axis([row.best for row in finite]))
  short = trials.short_names(names)
  titles = [*(short[name] for name in names), f"best {file.metric}"]
  places = np.linspace(_SIDE, _WIDTH - _SIDE, len(axes))
  lines = ""
  for rank, row in reversed(list(enumerate(finite))):  # The best is drawn last.
    values = [*(row.record.bindings[name] for name in names), row.best]
    heights = [axis.at(value) for axis, value in zip(axes, values, strict=True)]
    lines += _line(row, list(zip(places, heights, strict=True)), rank / max(1, len(finite) - 1))
  frame = "".join(_frame(x, title, axis)
                  for x, title, axis in zip(places, titles, axes, strict=True))
  note = "<p>The better a trial, the stronger its line. Point at one for its name.</p>"
  return (f'<svg viewBox="0 0 {_WIDTH} {_TOP + _HEIGHT + 24}" font-size="13">'
          f"{lines}{frame}</svg>{note}")


def _line(row: Row, points: Sequence[tuple[float, float]], rank: float) -> str:
  """Of the best trial, with `rank` 0, strong and blue; of the worst, with 1, faint."""
  path = "M" + "L".join(f"{x:.1f} {_y(height):.1f}" for x, height in points)
  color = "var(--evaluation)" if rank == 0 else "var(--training)"
  return (f'<path d="{path}" fill="none" stroke="{color}" stroke-width="{3 - 1.5 * rank:.2f}" '
          f'stroke-opacity="{1 - 0.75 * rank:.2f}" stroke-linejoin="round">'
          f"<title>{escape(row.record.id)}: {format_number(row.best)}</title></path>")


def _y(height: float) -> float:
  return _TOP + _HEIGHT * (1 - height)


def _frame(x: float, title: str, axis: _Axis) -> str:
  ticks = "".join(  # Upon the lines, with a rim in the color of the page.
    f'<text x="{x + 8:.1f}" y="{_y(height) + 4:.1f}" stroke="var(--card)" stroke-width="4" '
    f'paint-order="stroke">{escape(text)}</text>' for height, text in axis.ticks())
  words = f"{title} (log)" if axis.is_log else title
  # In the middle over its line, unless a long one would leave the picture.
  fits = x + len(words) * _LETTER / 2 < _WIDTH
  anchor, at = ("middle", x) if fits else ("end", _WIDTH)
  return (f'<path d="M{x:.1f} {_TOP}v{_HEIGHT}" stroke="var(--faint)"/>'
          f'<text x="{at:.1f}" y="{_TOP - 18}" text-anchor="{anchor}" font-weight="600">'
          f"{escape(words)}</text>{ticks}")


def strip(values: np.ndarray, span: tuple[float, float]) -> str:
  """A dot for each value `[n]` on a line over `span`, their mean, and a standard deviation."""
  if not len(values):
    return ""
  low, high = span
  place = lambda value: 8 + (_STRIP_WIDTH - 16) * ((value - low) / (high - low)
                                                   if high > low else 0.5)
  inside = lambda value: min(max(place(value), 1), _STRIP_WIDTH - 1)
  mean = float(values.mean())
  spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
  dots = "".join(f'<circle cx="{place(value):.1f}" cy="10" r="4" fill="var(--training)" '
                 f'fill-opacity="0.55"><title>{format_number(value)}</title></circle>'
                 for value in values)
  return (f'<svg viewBox="0 0 {_STRIP_WIDTH} 20"><path d="M0 10h{_STRIP_WIDTH}" '
          f'stroke="var(--line)"/><path d="M{inside(mean - spread):.1f} 10'
          f'H{inside(mean + spread):.1f}" stroke="var(--evaluation)" stroke-width="3"/>'
          f'<path d="M{place(mean):.1f} 3v14" stroke="var(--evaluation)" stroke-width="3"/>'
          f"{dots}</svg>")
