"""The state of a sweep, on disk and in memory: the trials that ran, that run, and that are left."""

import contextlib
import fcntl
import pathlib
import time
from collections.abc import Iterator

from replicator.errors import UsageError, nearest
from replicator.processes import stop_signals
from replicator.sweeps import results, search, trial_process, trials
from replicator.sweeps.sweep_file import SweepFile
from replicator.sweeps.trials import DONE, RUNNING, STOPPED, Metrics, Record, Trial
from replicator.sweeps.views import hparams, page
from replicator.sweeps.views.table import Table

_LOOK_SECONDS = 0.5   # At least this long between two looks at the metrics of the trials.
_DRAW_SECONDS = 30.0  # At least this long between two drawings of the page.
_DRAW_SHARE = 0.05    # Drawings take at most this share of the time.
_ECHO_SECONDS = 0.5   # A signal may arrive twice: at this process, and at its process group.


class Sweep:
  """Gives trials to a runner, records their results and shows them.

  Trials that `folder` records as ended do not run again, except failed ones with `retry_failed`.
  """

  def __init__(self, file: SweepFile, folder: pathlib.Path, retry_failed: bool, table: Table):
    self.file, self.folder = file, folder
    self.stopping = False
    self._table = table
    self._metrics: dict[str, Metrics] = {}
    self._running: set[str] = set()
    self._looked = 0.0
    self._draw_at = time.monotonic() + _DRAW_SECONDS
    self.records = self._read_records()
    if file.optuna:
      self.search: search.Listed | search.Proposed = search.Proposed(
        file, self.records, retry_failed,
        {trial_id: self._series(trial_id) for trial_id in self.records})
    else:
      self.search = search.Listed(file, self.records, retry_failed)

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

  def next(self) -> Trial | None:
    """Records and returns the next trial to run; None if there is none."""
    trial = None if self.stopping else self.search.propose()
    if trial is None:
      return None
    record = self.records.setdefault(
      trial.id, Record(trial.id, trial.bindings, order=len(self.records)))
    folder = self.trial_folder(trial.id)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / trial_process.STOP).unlink(missing_ok=True)
    record.status, record.message = trials.WAITING, ""
    record.write(folder)
    hparams.write_trial(folder, record)
    self._running.add(trial.id)
    return trial

  def is_proven(self, trial: Trial) -> bool:
    """Whether a trial that sets the same names has ended well."""
    return any(row.is_current and row.record.status in (DONE, trials.PRUNED)
               and sorted(row.record.bindings) == sorted(trial.bindings) for row in self.rows())

  def look(self) -> None:
    """Reads the metrics of the running trials, prunes, and shows the progress."""
    if time.monotonic() < self._looked + _LOOK_SECONDS:
      return
    self._looked = time.monotonic()
    for trial_id in self._running:
      self.records[trial_id] = self._read(trial_id)
      if not self.stopping and self.search.observe(trial_id, self._series(trial_id)):
        (self.trial_folder(trial_id) / trial_process.STOP).touch()
    self._table.show(self.rows(), self.search.count)

  def ended(self, trial_id: str) -> None:
    """Records and shows the end of a trial; its runner calls it.

    Raises:
      UsageError: the trial is done and never logged the metric.
    """
    self._running.discard(trial_id)
    record = self.records[trial_id] = self._read(trial_id)
    series = self._series(trial_id)
    self.search.ended(record, series)
    hparams.write_trial(self.trial_folder(trial_id), record)
    self._table.ended(next(row for row in self.rows() if row.record.id == trial_id))
    results.write_csv(self.folder, self.rows(), self.file)
    if record.status == DONE and not series:
      names = {name for row in self._metrics_of(trial_id).rows() for name in row}
      logged = sorted(names - {"step", "seconds"})
      raise UsageError(f"sweep.metric = '{self.file.metric}': the trials do not log it."
                       f"{nearest(self.file.metric, logged)} They log: "
                       f"{', '.join(logged) or 'nothing'}")
    if time.monotonic() > self._draw_at:
      self.write()

  def give_up(self, trial_id: str, status: str, message: str = "") -> None:
    """Records the end of a trial that a cluster has lost or never started."""
    record = self._read(trial_id)
    record.status, record.message = status, message
    record.write(self.trial_folder(trial_id))
    self.ended(trial_id)

  def stop(self, at_once: bool = False) -> None:
    """Starts no more trials, and makes the running ones save and end, or end `at_once`."""
    self.stopping = True
    (self.folder / trial_process.STOP).write_text(trial_process.AT_ONCE if at_once else "")

  @contextlib.contextmanager
  def stopped_by_signals(self) -> Iterator[None]:
    """Until exit, SIGINT or SIGTERM stops the sweep; a second signal stops it at once."""
    first = 0.0

    def receive(number: int) -> None:
      nonlocal first
      if not first:
        first = time.monotonic()
        self.stop()
      elif time.monotonic() > first + _ECHO_SECONDS:
        self.stop(at_once=True)

    with stop_signals(receive):
      yield

  def write(self) -> None:
    """Writes `sweep.csv`, `sweep.html` and the events for TensorBoard."""
    begun = time.monotonic()
    for trial_id in self._running:
      self.records[trial_id] = self._read(trial_id)
    rows = self.rows()
    results.write_csv(self.folder, rows, self.file)
    hparams.write_sweep(self.folder, self.file, rows)
    page.write(self.folder, rows, self.file, self.search.count)
    now = time.monotonic()
    self._draw_at = now + max(_DRAW_SECONDS, (now - begun) / _DRAW_SHARE)

  def rows(self) -> list[results.TrialRow]:
    """A row for each recorded trial, the best first."""
    return results.rows(self.file, self.records.values(), set(self.search.trials),
                        self._metrics_of)

  def current_rows(self) -> list[results.TrialRow]:
    """The rows of the trials that are still in the sweep file."""
    return [row for row in self.rows() if row.is_current]

  def running(self) -> list[Record]:
    """The records of the trials that the runner has not ended, read again."""
    return [self._read(trial_id) for trial_id in sorted(self._running)]

  def is_complete(self) -> bool:
    """Whether no trial is left to start or to resume."""
    return not self.search.probe() and all(
      row.record.status in trials.ENDED for row in self.current_rows())

  def _read(self, trial_id: str) -> Record:
    return trials.read_record(self.trial_folder(trial_id)) or self.records[trial_id]

  def _metrics_of(self, trial_id: str) -> Metrics:
    return self._metrics.setdefault(trial_id, Metrics(self.trial_folder(trial_id)))

  def _series(self, trial_id: str) -> list[tuple[int, float]]:
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
    (folder / trial_process.STOP).unlink(missing_ok=True)
    yield
