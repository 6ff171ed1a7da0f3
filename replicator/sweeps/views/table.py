"""The progress of a sweep: a live table on a terminal, elsewhere a line for each trial's end."""

from collections.abc import Sequence
from types import TracebackType

import rich.table
from rich.console import Console
from rich.live import Live
from rich.markup import escape

from replicator.console.formatting import format_duration, format_number
from replicator.sweeps import space, trials
from replicator.sweeps.results import TrialRow
from replicator.sweeps.trials import DONE, FAILED, PRUNED, RUNNING

_STYLES = {DONE: "green", FAILED: "red", PRUNED: "yellow", RUNNING: "cyan"}
_OTHER_LINES = 6  # Lines of a terminal beside the rows: titles, frame, summary, prompt.


class Table:
  """Shows the trials, from entry to exit, on `console` or else on standard output."""

  def __init__(self, metric: str, console: Console | None = None):
    self._metric = metric
    self._console = console or Console()
    self._live: Live | None = None

  def __enter__(self) -> "Table":
    if self._console.is_terminal and not self._console.is_dumb_terminal:
      self._live = Live("", console=self._console, refresh_per_second=2)
      self._live.start()
    return self

  def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
               trace: TracebackType | None) -> None:
    if self._live:
      self._live.stop()

  def show(self, rows: Sequence[TrialRow], count: int) -> None:
    """Draws the table again; the sweep has `count` trials."""
    if self._live:
      self._live.update(self._drawn(rows, count))

  def ended(self, row: TrialRow) -> None:
    """Writes a line for the end of a trial if there is no live table."""
    if not self._live:
      value = f"  {self._metric} {format_number(row.best)}" if row.series else ""
      message = f"  {row.record.message}" if row.record.message else ""
      self.note(f"{row.record.status:8s}{row.record.id}{value}  "
                f"{format_duration(row.record.seconds)}{message}")

  def note(self, line: str) -> None:
    """Writes a line, above the live table if there is one."""
    self._console.print(line, markup=False, highlight=False, soft_wrap=True)

  def _drawn(self, rows: Sequence[TrialRow], count: int) -> rich.table.Table:
    current = [row for row in rows if row.is_current]
    names = sorted({name for row in current for name in row.record.bindings})
    short = trials.short_names(names)
    table = rich.table.Table(caption=summary(current, count), caption_justify="left", box=None,
                             pad_edge=False, padding=(0, 2, 0, 0))
    for title in (*(short[name] for name in names), "status", "step", f"best {self._metric}",
                  "last", "time"):
      table.add_column(title, no_wrap=True)
    room = max(1, self._console.height - _OTHER_LINES)
    # The best trials and the running ones stay in sight.
    shown = [row for row in current if row.record.status == RUNNING]
    others = [row for row in current if row.record.status != RUNNING]
    shown = others[:max(0, room - len(shown))] + shown
    for row in shown[:room]:
      style = _STYLES.get(row.record.status, "")
      table.add_row(
        *(escape(space.short_text(row.record.bindings[name])) if name in row.record.bindings else ""
          for name in names),
        f"[{style}]{row.record.status}[/]" if style else row.record.status,
        "" if row.step is None else str(row.step),
        format_number(row.best) if row.series else "",
        format_number(row.last) if row.series else "",
        format_duration(row.record.seconds) if row.record.seconds else "")
    return table


def summary(rows: Sequence[TrialRow], count: int) -> str:
  """`7 of 12 done, 2 running, 1 failed`."""
  numbers = {status: sum(row.record.status == status for row in rows)
             for status in (RUNNING, PRUNED, trials.STOPPED, FAILED)}
  done = sum(row.record.status == DONE for row in rows)
  return ", ".join([f"{done} of {count} done",
                    *(f"{number} {status}" for status, number in numbers.items() if number)])
