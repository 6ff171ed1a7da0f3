"""Starts, watches, stops and records one process of a trial.

The sweep asks trials to stop through files visible on all machines: `stop` in the sweep's folder
stops all trials, or kills them if it contains `at once`; `stop` in a trial's folder prunes that
trial. `python -m replicator.tools.sweeps.trial_process FOLDER ID` runs a trial in a cluster job.
"""

import contextlib
import fcntl
import os
import pathlib
import signal
import sys
import time

from replicator.errors import PREEMPTED_STATUS
from replicator.processes import Child, stop_signals
from replicator.tools.sweeps import trials
from replicator.tools.sweeps.trials import DONE, FAILED, PRUNED, RUNNING, STOPPED, Record

STOP, AT_ONCE = "stop", "at once"
_POLL_SECONDS = 0.1
LOCK_SECONDS = 120.0  # The longest a trial waits for its earlier process to save.
_LAST_BYTES = 20_000
# Thread counts of TensorFlow and OpenMP.
_THREADS = "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"


class Attempt:
  """One attempt to run the trial recorded in `folder/trials/ID`, or to resume it.

  `folder` is the sweep's. The trial uses `threads` threads; by default, one per core. Its command
  runs in the folder `cwd`; by default, this process's. It sees the GPUs `gpus`, such as "0,1"; by
  default, those visible to this process.

  Raises:
    FileNotFoundError: the record is not visible on this machine.
  """

  def __init__(self, trial_id: str, folder: pathlib.Path, threads: int | None = None,
               cwd: str | None = None, gpus: str | None = None):
    self._folder = trials.folder_of(folder, trial_id)
    self._stop_all, self._stop_this = folder / STOP, self._folder / STOP
    self._cwd = cwd
    self._environment = {name: str(threads) for name in _THREADS} if threads else {}
    if gpus:
      self._environment["CUDA_VISIBLE_DEVICES"] = gpus
    self._begun = time.monotonic()
    self._child: Child | None = None
    self._is_stopping = False
    self._asked = ""  # The final status, once the process was asked to stop.
    self._log_begin = 0
    if (record := trials.read_record(self._folder)) is None:
      raise FileNotFoundError(f"{self._folder / trials.RECORD}: is missing on this machine")
    self._record = record
    self._lock = (self._folder / ".lock").open("w")

  def poll(self) -> Record | None:
    """Starts, watches or stops the process; returns the record when the trial has ended."""
    if self._child is None:
      return self._try_to_start()
    if (code := self._child.process.poll()) is not None:
      return self._end(code)
    if not self._asked:
      self._asked = self._wish()
      if self._asked:
        self._child.process.terminate()
    else:
      with contextlib.suppress(FileNotFoundError):
        if self._stop_all.read_text() == AT_ONCE:
          self._child.process.kill()
    return None

  def run(self) -> Record:
    """Runs the trial to its end."""
    while (record := self.poll()) is None:
      time.sleep(_POLL_SECONDS)
    return record

  def stop(self) -> None:
    """Makes the next `poll` ask the trial to save and end."""
    self._is_stopping = True

  def _wish(self) -> str:
    """Returns the status that the trial should end with; empty if it may continue."""
    if self._is_stopping or self._stop_all.exists():
      return STOPPED
    return PRUNED if self._stop_this.exists() else ""

  def _try_to_start(self) -> Record | None:
    if self._record.status == DONE:  # A cluster has restarted it after it ended.
      self._lock.close()
      return self._record
    if asked := self._wish():
      return self._write(asked, None)
    try:
      fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
      if time.monotonic() < self._begun + LOCK_SECONDS:
        return None
      return self._write(FAILED, None, "another process is still running this trial")
    self._start()
    return None

  def _start(self) -> None:
    self._begun = time.monotonic()
    with (self._folder / trials.LOG).open("ab") as log:
      self._log_begin = log.tell()
      self._child = Child(
          self._record.words(), self._environment,
          end_signal=signal.SIGTERM, end_status=PREEMPTED_STATUS, cwd=self._cwd, stdout=log,
          pass_fds=[self._lock.fileno()])  # The child holds the lock even if this process dies.
    self._record.status, self._record.message = RUNNING, ""
    self._record.write(self._folder)

  def _end(self, code: int) -> Record:
    by_request = self._asked and code in (PREEMPTED_STATUS, -signal.SIGTERM, -signal.SIGKILL)
    if code == 0:
      return self._write(DONE, code)
    if by_request or code == PREEMPTED_STATUS:
      return self._write(self._asked or STOPPED, code)
    words = f"ended by signal {-code}: " if code < 0 else ""
    return self._write(FAILED, code, words + self._last_line())

  def _write(self, status: str, code: int | None, message: str = "") -> Record:
    if self._child is not None:
      self._record.seconds = round(self._record.seconds + time.monotonic() - self._begun, 3)
    self._record.status, self._record.exit_code = status, code
    self._record.message = message
    self._record.write(self._folder)
    self._stop_this.unlink(missing_ok=True)
    self._lock.close()
    return self._record

  def _last_line(self) -> str:
    with (self._folder / trials.LOG).open("rb") as log:
      end = log.seek(0, os.SEEK_END)
      log.seek(max(self._log_begin, end - _LAST_BYTES))
      lines = log.read().decode(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")


def main(folder: str, trial_id: str) -> int:
  """Runs a trial of the sweep in `folder` to its end; returns 1 if it failed."""
  attempt = Attempt(trial_id, pathlib.Path(folder))
  with stop_signals(lambda number: attempt.stop()):  # A time limit, a preemption, scancel.
    return int(attempt.run().status == FAILED)


if __name__ == "__main__":
  sys.exit(main(*sys.argv[1:]))
