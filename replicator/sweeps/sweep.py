"""The state of a sweep, on disk and in memory: the trials that ran, that run, and that are left."""

import contextlib
import fcntl
import pathlib
import time
from collections.abc import Callable, Iterator

from replicator.errors import UsageError, nearest
from replicator.processes import stop_signals
from replicator.sweeps import page, trials
from replicator.sweeps.results import TrialResult, ranked, write_csv
from replicator.sweeps.sweep_file import SweepFile
from replicator.sweeps.table import Table
from replicator.sweeps.trial_process import AT_ONCE, POLL_SECONDS, STOP
from replicator.sweeps.trials import DONE, RUNNING, STOPPED, WAITING, Record, Trial

_LOOK_SECONDS = 0.5   # At least this long between two looks at the metrics of the trials.
_WRITE_SECONDS = 30.0  # At least this long between two times that the page is written.
_WRITE_SHARE = 0.05   # The share of the time that this may take.
_ECHO_SECONDS = 0.5   # A signal may arrive twice: at this process, and at its process group.


class Sweep:
  """Gives trials to a runner, records their results and shows them.

  Trials that `folder` records as ended do not run again, except failed ones with `retry_failed`.
  Without a `table`, the sweep is only explained: no file is written.
  """

  def __init__(self, file: SweepFile, folder: pathlib.Path, retry_failed: bool,
               table: Table | None = None):
    from replicator.sweeps import search  # Loads Optuna, which a bad command line need not await.
    self.file, self.folder = file, folder
    self.stopping = False
    self._signaled = 0.0  # When the first signal came.
    self._table = table
    self._running: dict[int, tuple[str, Callable[[], object]]] = {}  # By slot: see `run`.
    self._looked = 0.0
    self._write_at = time.monotonic() + _WRITE_SECONDS
    self.results = self._read_results()  # The results of all recorded trials, by their ids.
    self.search = search.Search(file, self.results, retry_failed, folder / search.JOURNAL,
                                in_memory=table is None)
    for trial_id, result in self.results.items():
      result.is_current = trial_id in self.search.trials

  def _read_results(self) -> dict[str, TrialResult]:
    found = {}
    for path in sorted((self.folder / "trials").glob(f"*/{trials.RECORD}")):
      if record := trials.read_record(path.parent):
        found[record.id] = result = TrialResult(record, self.file)
        result.read(path.parent)
        if result.record.status == RUNNING:  # The sweep that ran it was killed.
          result.record.status = STOPPED
    return dict(sorted(found.items(), key=lambda item: item[1].record.order))

  def trial_folder(self, trial_id: str) -> pathlib.Path:
    """The workdir of a trial."""
    return self.folder / "trials" / trial_id

  # ---- Running ----------------------------------------------------------------------------------

  def run(self, start: Callable[[Trial, int], Callable[[], object]], slots: Callable[[], int],
          poll_seconds: float = POLL_SECONDS) -> None:
    """Runs the trials that are left, one in each slot; returns when all have ended or stopped.

    `start` starts a trial in a slot, and returns a function that is true once the trial has ended.
    The first SIGINT or SIGTERM stops the sweep, the second one stops it at once.
    """
    running = self._running
    with stop_signals(self._receive_signal):
      try:
        while True:
          for slot in range(slots()):
            if slot not in running and (trial := self._next()):
              running[slot] = trial.id, start(trial, slot)
          if not running:
            return
          for slot, (trial_id, has_ended) in list(running.items()):
            if has_ended():
              del running[slot]
              self._ended(trial_id)
          self._look()
          time.sleep(poll_seconds)
      finally:  # After an error of the sweep's own, its trials save.
        if running:
          self._stop()
        for trial_id, has_ended in running.values():
          while not has_ended():
            time.sleep(poll_seconds)
          self._read(trial_id)

  def _receive_signal(self, number: int) -> None:
    if not self._signaled:
      self._signaled = time.monotonic()
      self._stop()
    elif time.monotonic() > self._signaled + _ECHO_SECONDS:
      self._stop(at_once=True)

  def _stop(self, at_once: bool = False) -> None:
    """Starts no more trials, and makes the running ones save and end, or end `at_once`."""
    self.stopping = True
    (self.folder / STOP).write_text(AT_ONCE if at_once else "")

  def _next(self) -> Trial | None:
    """Records and returns the next trial to run; None if there is none."""
    trial = None if self.stopping else self.search.propose()
    if trial is None:
      return None
    new = Record(trial.id, trial.bindings, order=len(self.results))
    record = self.results.setdefault(trial.id, TrialResult(new, self.file)).record
    folder = self.trial_folder(trial.id)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / STOP).unlink(missing_ok=True)
    record.status, record.message = WAITING, ""
    record.write(folder)
    return trial

  def status(self, trial_id: str) -> str:
    """The status that the trial's process, here or on another machine, has recorded last."""
    return self._read(trial_id).record.status

  def give_up(self, trial_id: str, status: str, message: str = "") -> bool:
    """Records the end of a trial that a cluster has lost or never started; returns True."""
    record = self._read(trial_id).record
    record.status, record.message = status, message
    record.write(self.trial_folder(trial_id))
    return True

  def _ended(self, trial_id: str) -> None:
    """Shows the end of a trial; raises a UsageError if a trial is done and has no metric."""
    result = self._read(trial_id)
    if result.record.status in trials.ENDED:
      self.search.ended(result)
    if self._table:
      self._table.ended(result)
    if result.record.status == DONE and not result.series:
      raise UsageError(f"sweep.metric = '{self.file.metric}': the trials do not log it."
                       f"{nearest(self.file.metric, result.names)} They log: "
                       f"{', '.join(result.names) or 'nothing'}")

  # ---- Looking ----------------------------------------------------------------------------------

  def _look(self) -> None:
    """Reads the metrics of the running trials, prunes, and shows the progress."""
    if time.monotonic() < self._looked + _LOOK_SECONDS:
      return
    self._looked = time.monotonic()
    for trial_id, _ in self._running.values():
      result = self._read(trial_id)
      if not self.stopping and self.search.is_poor(result):
        (self.trial_folder(trial_id) / STOP).touch()
    if self._table:
      self._table.show(self.current(), self.search.count)
    if time.monotonic() > self._write_at:
      self.write()

  def write(self) -> None:
    """Writes `sweep.csv` and `sweep.html`."""
    begun = time.monotonic()
    results = ranked(self.results.values())
    write_csv(self.folder, results, self.file.metric)
    page.write(self.folder, results, self.file, self.search.count)
    now = time.monotonic()
    self._write_at = now + max(_WRITE_SECONDS, (now - begun) / _WRITE_SHARE)

  def current(self) -> list[TrialResult]:
    """The results of the trials that are still in the sweep file, the best first."""
    return [result for result in ranked(self.results.values()) if result.is_current]

  def is_complete(self) -> bool:
    """Whether no trial is left to start or to resume."""
    return not self.search.peek() and all(
        result.record.status in trials.ENDED for result in self.current())

  def _read(self, trial_id: str) -> TrialResult:
    self.results[trial_id].read(self.trial_folder(trial_id))
    return self.results[trial_id]


@contextlib.contextmanager
def alone(folder: pathlib.Path) -> Iterator[None]:
  """Makes the folder and keeps other sweeps out of it.

  Raises:
    UsageError: another sweep runs in the folder.
  """
  folder.mkdir(parents=True, exist_ok=True)
  with (folder / ".lock").open("w") as lock:
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
      raise UsageError(f"--workdir={folder}: another sweep runs in this folder") from None
    # A stopped sweep leaves the file, for trials that a cluster starts later.
    (folder / STOP).unlink(missing_ok=True)
    yield
