"""Formats numbers, durations and lists for people."""

from collections.abc import Sequence


def format_number(value: float) -> str:
  """Formats with four significant digits: `1.234`, `0.0002`, `123457`, `1.5e-06`, `nan`."""
  if 9999.5 <= abs(value) < 1e7:
    return f"{value:.0f}"
  return f"{value:.4g}"


def format_duration(seconds: float) -> str:
  """Formats the two leading units: `12s`, `2m 05s`, `3h 07m`, `2d 04h`."""
  minutes, s = divmod(round(seconds), 60)
  hours, m = divmod(minutes, 60)
  days, h = divmod(hours, 24)
  if days:
    return f"{days}d {h:02d}h"
  if hours:
    return f"{h}h {m:02d}m"
  return f"{m}m {s:02d}s" if minutes else f"{s}s"


def bar(done: int, count: int, width: int) -> str:
  """Draws a progress bar in `width` columns: `━━━━━━──────`."""
  full = width * done // count
  return "━" * full + "─" * (width - full)


def format_bar(what: str, done: int, count: int) -> str:
  """Formats progress in one line: `converting  ━━━━━━────── 1,024 of 2,048`."""
  return f"{what}  {bar(done, count, 24)}  {done:,} of {count:,}"


def labeled(label: str, text: str) -> str:
  """Formats a line of the list at the start of a run: `strategy    mirrored, 2 replicas`."""
  return f"{label:<12}{text}"


def listed(names: Sequence[str], most: int = 3) -> str:
  """Lists the first names, and how many more there are."""
  rest = f" and {len(names) - most:,} more" if len(names) > most else ""
  return ", ".join(names[:most]) + rest
