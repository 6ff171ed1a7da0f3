"""The state of a sweep, on disk and in memory: its past, running and remaining trials."""

import dataclasses
import pathlib
import time
from collections.abc import Callable

from replicator.console.status import Status
from replicator.errors import UsageError, nearest
from replicator.processes import stop_signals
from replicator.tools.sweeps import results, trials
from replicator.tools.sweeps.results import TrialResult
from replicator.tools.sweeps.sweep_file import SweepFile
from replicator.tools.sweeps.trial_process import AT_ONCE, STOP
from replicator.tools.sweeps.trials import DONE, RUNNING, STOPPED, Record
from replicator.training.workdir import reader

from rich.text import Text

POLL_SECONDS = 1.0     # Between checks of the running trials.
_WRITE_SECONDS = 30.0  # The minimum time between writes of the page.
_WRITE_SHARE = 0.05   # The maximum share of time spent on that.
_ECHO_SECONDS = 0.5   # A signal may arrive twice: for this process, and for its process group.


class Sweep:
  """A sweep, which passes trials to a runner, and records and shows their results.

  Trials recorded in `folder` as ended do not run again, except failed ones with `retry_failed`.
  `in_memory` is for a sweep that is only explained: it writes no files.
  """

  def __init__(self, file: SweepFile, folder: pathlib.Path, retry_failed: bool,
               in_memory: bool = False):
    # These load Optuna, which would delay the error of a bad command line.
    from replicator.tools.sweeps import search
    from replicator.tools.sweeps.populations import population
    self.file, self.folder = file, folder
    self.stopping = False
    self._signaled = 0.0  # When the first signal arrived.
    self._status = Status()
    self._running: dict[str, Callable[[], object]] = {}  # Returns whether each trial has ended.
    self._write_at = time.monotonic() + _WRITE_SECONDS
    self.results = self._read_results()  # The results of all recorded trials, by ID.
    self.search: population.Population | search.Search = (
        population.Population(file, self.results, retry_failed, folder, self._status.note)
        if file.population else
        search.Search(file, self.results, retry_failed, folder, in_memory))
    for trial_id, result in self.results.items():
      result.is_current = trial_id in self.search.trials

  def _read_results(self) -> dict[str, TrialResult]:
    found = {}
    for path in sorted(trials.folder_of(self.folder, "").glob(f"*/{trials.RECORD}")):
      if record := trials.read_record(path.parent):
        found[record.id] = result = TrialResult(record, self.file)
        result.read(path.parent)
        if result.record.status == RUNNING:  # The sweep that ran it was killed.
          result.record.status = STOPPED
    return dict(sorted(found.items(), key=lambda item: item[1].record.order))

  def run(self, start: Callable[[str], Callable[[], object]], slots: Callable[[], int]) -> None:
    """Runs the remaining trials, up to `slots` at a time, until all have ended or stopped.

    `start` starts the trial with an ID, and returns a function that is true once it has ended.
    The first SIGINT or SIGTERM lets the trials save and end; the second one kills them.
    """
    running = self._running
    # A stopped sweep leaves this file, for trials that a cluster starts later.
    (self.folder / STOP).unlink(missing_ok=True)
    with stop_signals(self._receive_signal), self._status:
      for line in [f"{self.folder}: {self.state()}",
                   *results.apart(self.results.values())]:
        self._status.note(line)
      try:
        while True:
          while len(running) < slots() and (trial_id := self._next()):
            running[trial_id] = start(trial_id)
          if not running:
            return
          for trial_id, has_ended in list(running.items()):
            if has_ended():
              del running[trial_id]
              self._ended(trial_id)
          self._look()
          time.sleep(POLL_SECONDS)
      finally:  # If the sweep itself fails, its trials still save.
        if running:
          self._stop()
        for trial_id, has_ended in running.items():
          while not has_ended():
            time.sleep(POLL_SECONDS)
          self._read(trial_id)

  def _receive_signal(self, number: int) -> None:
    if not self._signaled:
      self._signaled = time.monotonic()
      self._stop()
    elif time.monotonic() > self._signaled + _ECHO_SECONDS:
      self._stop(at_once=True)

  def _stop(self, at_once: bool = False) -> None:
    """Starts no more trials; tells the running ones to save and end, or to end `at_once`."""
    self.stopping = True
    (self.folder / STOP).write_text(AT_ONCE if at_once else "")

  def _next(self) -> str:
    """Records the next trial to run, and returns its ID; empty if there is none."""
    trial = None if self.stopping else self.search.propose()
    if trial is None:
      return ""
    new = dataclasses.replace(trial, order=len(self.results))
    result = self.results.setdefault(trial.id, TrialResult(new, self.file))
    result.record = trial.after(result.record)
    folder = trials.folder_of(self.folder, trial.id)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / STOP).unlink(missing_ok=True)
    result.record.write(folder)
    return trial.id

  def status(self, trial_id: str) -> str:
    """Returns the status last recorded by the trial's process, here or on another machine."""
    return self._read(trial_id).record.status

  def give_up(self, trial_id: str, status: str, message: str = "") -> bool:
    """Records the end of a trial that a cluster lost or never started; returns True."""
    record = self._read(trial_id).record
    record.status, record.message = status, message
    record.write(trials.folder_of(self.folder, trial_id))
    return True

  def _ended(self, trial_id: str) -> None:
    """Shows that a trial ended; raises a UsageError if it is done but did not log the metric."""
    result = self._read(trial_id)
    if result.record.status in trials.ENDED:
      self.search.ended(result)
    self._status.note(results.ended(result))
    if result.record.status == DONE and not result.series:
      names = sorted(reader.read(trials.folder_of(self.folder, trial_id)).series())
      raise UsageError(f"sweep.metric = '{self.file.metric}': the trials do not log it."
                       f"{nearest(self.file.metric, names)} They log: "
                       f"{', '.join(names) or 'nothing'}")

  def _look(self) -> None:
    """Reads the metrics of the running trials, prunes, and shows the results."""
    for trial_id in self._running:
      result = self._read(trial_id)
      if not self.stopping and self.search.is_poor(result):
        (trials.folder_of(self.folder, trial_id) / STOP).touch()
    self._status.show(Text(self.state()))
    if time.monotonic() > self._write_at:
      self.write()

  def write(self) -> None:
    """Writes `sweep.csv` and `sweep.html`."""
    begun = time.monotonic()
    rows = results.ranked(self.results.values())
    self.search.draw()
    results.write_csv(self.folder, rows, self.file.metric)
    results.write_page(self.folder, rows, self.file, self.search.count)
    now = time.monotonic()
    self._write_at = now + max(_WRITE_SECONDS, (now - begun) / _WRITE_SHARE)

  def state(self) -> str:
    """Returns the state of the sweep in one line."""
    return self.search.stage + results.state(self.current(), self.search.count)

  def record(self, trial: Record) -> Record:
    """Returns the record of a trial, or the trial itself if it has not begun in its generation."""
    known = self.results.get(trial.id)
    return known.record if known and known.record.generation == trial.generation else trial

  def current(self) -> list[TrialResult]:
    """Returns the results of the trials that are still in the sweep file, best first."""
    return [result for result in results.ranked(self.results.values()) if result.is_current]

  def is_complete(self) -> bool:
    """Returns whether no trial is left to start or resume."""
    return not self.search.peek() and all(
        result.record.status in trials.ENDED for result in self.current())

  def _read(self, trial_id: str) -> TrialResult:
    self.results[trial_id].read(trials.folder_of(self.folder, trial_id))
    return self.results[trial_id]
