"""The report of a run that goes on: written again and again, at a small part of the run's time."""

import pathlib
import time
from collections.abc import Callable

from replicator.workdir.writer import WorkdirWriter

_SHARE = 0.01  # Share of the run's time that reports may use.


class LiveReport:
  """Keeps the `report.html` of a run up to date; a report that fails never ends the run.

  `record` is the writer of the workdir; `say` is called with a line about a failure.
  """

  def __init__(self, record: WorkdirWriter, say: Callable[[str], None],
               clock: Callable[[], float] = time.monotonic):
    self._record = record
    self._say = say
    self._clock = clock
    self._next = 0.0  # The earliest time of the next report.

  def update(self) -> None:
    """Writes the report, unless the last one was too recent."""
    if self._clock() >= self._next:
      self._write()

  def finish(self, ended: str) -> pathlib.Path:
    """Writes the last report of a run that `ended` so, or is done; returns the report's path."""
    self._write(ended)
    return self._record.workdir / "report.html"

  def _write(self, ended: str | None = None) -> None:
    begun = self._clock()
    try:
      if ended is not None:
        self._record.note("ended", ended)
      from replicator.workdir import report  # It takes matplotlib with it.
      report.write_report(self._record.workdir)
    except Exception as error:
      self._say(f"warning: the report cannot be written ({type(error).__name__}: {error})")
    now = self._clock()
    self._next = now + (now - begun) / _SHARE
