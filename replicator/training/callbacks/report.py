"""Keeps the page `report.html` up to date during a run."""

import time

from replicator.console import kernel
from replicator.errors import UsageError
from replicator.training.callbacks.callback import Callback
from replicator.training.run import Run
from replicator.training.workdir.report import show_report, write_report


class Report(Callback):
  """A callback that writes `report.html` at log points and at the end.

  In a notebook, its main curves also appear under the cell. It takes at most 1% of the run's time.
  If a report fails, it prints a warning and the run continues.
  """

  in_checks = False
  _SHARE = 0.01

  def __init__(self) -> None:
    self._next = 0.0  # The earliest time for the next report.
    self._place = kernel.Place() if kernel.is_kernel() else None

  def after_steps(self, run: Run) -> None:
    """Writes the report, unless the last one was too recent."""
    if time.monotonic() >= self._next:
      self._write(run)

  def end(self, run: Run, error: BaseException | None) -> None:
    """Writes the last report, unless the run was rejected or interrupted."""
    is_refused = isinstance(error, UsageError) and not run.has_begun
    if (error is None or isinstance(error, Exception)) and not is_refused:
      self._write(run)
    if error is None:
      run.say(f"done: {run.workdir / 'report.html'}")

  def _write(self, run: Run) -> None:
    begun = time.monotonic()
    try:
      write_report(run.workdir)
      if self._place:
        show_report(run.workdir, self._place)
    except Exception as error:
      run.say(f"warning: the report cannot be written ({type(error).__name__}: {error})")
    now = time.monotonic()
    self._next = now + (now - begun) / self._SHARE
