"""The progress of a sweep: a live table on a terminal, elsewhere a line for each trial's end."""

from collections.abc import Sequence

import rich.table
from rich.console import Console
from rich.live import Live
from rich.markup import escape

from replicator.console.formatting import format_duration, format_number
from replicator.sweeps import space, trials
from replicator.sweeps.results import TrialResult
from replicator.sweeps.trials import DONE, FAILED, PRUNED, RUNNING, STOPPED

_STYLES = {DONE: "green", FAILED: "red", PRUNED: "yellow", RUNNING: "cyan"}
_OTHER_LINES = 6  # Lines of a terminal beside the results: titles, frame, summary, prompt.


class Table:
  """Shows the trials, from entry to exit, on `console` or else on standard output."""

  def __init__(self, metric: str, console: Console | None = None):
    self._metric = metric
    self._console = console or Console()
    is_live = self._console.is_terminal and not self._console.is_dumb_terminal
    self._live = Live("", console=self._console, refresh_per_second=2) if is_live else None

  def __enter__(self) -> "Table":
    if self._live:
      self._live.start()
    return self

  def __exit__(self, *error: object) -> None:
    if self._live:
      self._live.stop()

  def show(self, results: Sequence[TrialResult], count: int) -> None:
    """Draws the table of the current `results` again; the sweep has `count` trials."""
    if self._live:
      self._live.update(self._drawn(results, count))

  def ended(self, result: TrialResult) -> None:
    """Writes a line for the end of a trial if there is no live table."""
    if not self._live:
      value = f"  {self._metric} {format_number(result.best())}" if result.series else ""
      message = f"  {result.record.message}" if result.record.message else ""
      self.note(f"{result.record.status:8s}{result.record.id}{value}  "
                f"{format_duration(result.record.seconds)}{message}")

  def note(self, line: str) -> None:
    """Writes a line, above the live table if there is one."""
    self._console.print(line, markup=False, highlight=False, soft_wrap=True)

  def _drawn(self, results: Sequence[TrialResult], count: int) -> rich.table.Table:
    names = sorted({name for result in results for name in result.record.bindings})
    table = rich.table.Table(
      *trials.short_names(names).values(), "status", "step", f"best {self._metric}", "last", "time",
      caption=summary(results, count), caption_justify="left", box=None, pad_edge=False,
      padding=(0, 2, 0, 0))
    for column in table.columns:
      column.no_wrap = True
    # The best trials and the running ones stay in sight.
    room = max(1, self._console.height - _OTHER_LINES)
    running = [result for result in results if result.record.status == RUNNING]
    others = [result for result in results if result.record.status != RUNNING]
    for result in (others[:max(0, room - len(running))] + running)[:room]:
      record = result.record
      style = _STYLES.get(record.status)
      table.add_row(
        *(escape(space.short_text(record.bindings[name])) if name in record.bindings else ""
          for name in names),
        f"[{style}]{record.status}[/]" if style else record.status,
        "" if result.step is None else str(result.step),
        *(format_number(value) if result.series else ""
          for value in (result.best(), result.last())),
        format_duration(record.seconds) if record.seconds else "")
    return table


def summary(results: Sequence[TrialResult], count: int) -> str:
  """`7 of 12 done, 2 running, 1 failed`, of the current `results`."""
  statuses = [result.record.status for result in results]
  return ", ".join([f"{statuses.count(DONE)} of {count} done",
                    *(f"{statuses.count(status)} {status}"
                      for status in (RUNNING, PRUNED, STOPPED, FAILED) if status in statuses)])
