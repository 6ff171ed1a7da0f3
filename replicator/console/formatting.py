"""Numbers, durations and lists as a person reads them."""

from collections.abc import Sequence


def format_number(value: float) -> str:
  """Four significant digits: `1.234`, `0.0002`, `123457`, `1.5e-06`, `nan`."""
  if 9999.5 <= abs(value) < 1e7:
    return f"{value:.0f}"
  return f"{value:.4g}"


def format_duration(seconds: float) -> str:
  """The two leading units: `12s`, `2m 05s`, `3h 07m`, `2d 04h`."""
  minutes, s = divmod(round(seconds), 60)
  hours, m = divmod(minutes, 60)
  days, h = divmod(hours, 24)
  if days:
    return f"{days}d {h:02d}h"
  if hours:
    return f"{h}h {m:02d}m"
  return f"{m}m {s:02d}s" if minutes else f"{s}s"


def bar(done: int, count: int, width: int) -> str:
  """The part of something that is done, in `width` columns: `━━━━━━──────`."""
  full = width * done // count
  return "━" * full + "─" * (width - full)


def format_bar(what: str, done: int, count: int) -> str:
  """The progress of something in one line: `converting  ━━━━━━────── 1,024 of 2,048`."""
  return f"{what}  {bar(done, count, 24)}  {done:,} of {count:,}"


def labeled(label: str, text: str) -> str:
  """A line of the list that a run begins with: `strategy    mirrored, 2 replicas`."""
  return f"{label:<12}{text}"


def listed(names: Sequence[str], most: int = 3) -> str:
  """The first names, and how many more there are."""
  rest = f" and {len(names) - most:,} more" if len(names) > most else ""
  return ", ".join(names[:most]) + rest
