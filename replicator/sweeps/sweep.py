"""The state of a sweep, on disk and in memory: the trials that ran, that run, and that are left."""

import contextlib
import fcntl
import pathlib
import time
from collections.abc import Callable, Iterator

from replicator.errors import UsageError, nearest
from replicator.processes import stop_signals
from replicator.sweeps import page, results, trials
from replicator.sweeps.sweep_file import SweepFile
from replicator.sweeps.table import Table
from replicator.sweeps.trial_process import AT_ONCE, POLL_SECONDS, STOP
from replicator.sweeps.trials import DONE, RUNNING, STOPPED, WAITING, Metrics, Record, Trial

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
    self._metrics: dict[str, Metrics] = {}
    self._running: set[str] = set()
    self._looked = 0.0
    self._write_at = time.monotonic() + _WRITE_SECONDS
    self.records = self._read_records()
    self.search = search.Search(file, self.records, retry_failed, self._series,
                                folder / search.JOURNAL, in_memory=table is None)

  def _read_records(self) -> dict[str, Record]:
    found = [trials.read_record(path.parent)
             for path in sorted((self.folder / "trials").glob(f"*/{trials.RECORD}"))]
    records = sorted((record for record in found if record), key=lambda record: record.order)
    for record in records:
      if record.status == RUNNING:  # The sweep that ran it was killed.
        record.status = STOPPED
    return {record.id: record for record in records}

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
    running: dict[int, tuple[str, Callable[[], object]]] = {}
    with stop_signals(self._receive_signal):
      try:
        while True:
          for slot in set(range(slots())) - set(running):
            if trial := self._next():
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
        for _, has_ended in running.values():
          while not has_ended():
            time.sleep(poll_seconds)

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
    record = self.records.setdefault(
      trial.id, Record(trial.id, trial.bindings, order=len(self.records)))
    folder = self.trial_folder(trial.id)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / STOP).unlink(missing_ok=True)
    record.status, record.message = WAITING, ""
    record.write(folder)
    self._running.add(trial.id)
    return trial

  def status(self, trial_id: str) -> str:
    """The status that the trial's process, here or on another machine, has recorded last."""
    return self._read(trial_id).status

  def give_up(self, trial_id: str, status: str, message: str = "") -> bool:
    """Records the end of a trial that a cluster has lost or never started; returns True."""
    record = self._read(trial_id)
    record.status, record.message = status, message
    record.write(self.trial_folder(trial_id))
    return True

  def _ended(self, trial_id: str) -> None:
    """Shows the end of a trial; raises a UsageError if a trial is done and has no metric."""
    self._running.discard(trial_id)
    record = self.records[trial_id] = self._read(trial_id)
    series = self._series(trial_id)
    if record.status in trials.ENDED:
      self.search.ended(record, series)
    if self._table:
      self._table.ended(next(row for row in self.rows() if row.record.id == trial_id))
    if record.status == DONE and not series:
      names = {name for row in self._metrics_of(trial_id).rows() for name in row}
      logged = sorted(names - {"step", "seconds"})
      raise UsageError(f"sweep.metric = '{self.file.metric}': the trials do not log it."
                       f"{nearest(self.file.metric, logged)} They log: "
                       f"{', '.join(logged) or 'nothing'}")

  # ---- Looking ----------------------------------------------------------------------------------

  def _look(self) -> None:
    """Reads the metrics of the running trials, prunes, and shows the progress."""
    if time.monotonic() < self._looked + _LOOK_SECONDS:
      return
    self._looked = time.monotonic()
    for trial_id in self._running:
      self.records[trial_id] = self._read(trial_id)
      if not self.stopping and self.search.is_poor(self._series(trial_id)):
        (self.trial_folder(trial_id) / STOP).touch()
    if self._table:
      self._table.show(self.current_rows(), self.search.count)
    if time.monotonic() > self._write_at:
      self.write()

  def write(self) -> None:
    """Writes `sweep.csv` and `sweep.html`."""
    begun = time.monotonic()
    results.write_csv(self.folder, self.rows(), self.file)
    page.write(self.folder, self.rows(), self.file, self.search.count)
    now = time.monotonic()
    self._write_at = now + max(_WRITE_SECONDS, (now - begun) / _WRITE_SHARE)

  def rows(self) -> list[results.TrialRow]:
    """A row for each recorded trial, the best first."""
    return results.rows(self.file, self.records.values(), set(self.search.trials),
                        self._metrics_of)

  def current_rows(self) -> list[results.TrialRow]:
    """The rows of the trials that are still in the sweep file."""
    return [row for row in self.rows() if row.is_current]

  def is_complete(self) -> bool:
    """Whether no trial is left to start or to resume."""
    return not self.search.peek() and all(
      row.record.status in trials.ENDED for row in self.current_rows())

  def _read(self, trial_id: str) -> Record:
    return trials.read_record(self.trial_folder(trial_id)) or self.records[trial_id]

  def _metrics_of(self, trial_id: str) -> Metrics:
    return self._metrics.setdefault(trial_id, Metrics(self.trial_folder(trial_id)))

  def _series(self, trial_id: str) -> trials.Series:
    return self._metrics_of(trial_id).series(self.file.metric)


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
