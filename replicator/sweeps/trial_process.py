"""One process of a trial: started, watched, asked to stop, and recorded.

The sweep asks trials to stop by files that all machines see: `stop` in the sweep's folder stops all
trials, and kills them if it says `at once`; `stop` in a trial's folder prunes that trial.
"""

import fcntl
import os
import pathlib
import signal
import time
from collections.abc import Sequence

from replicator.errors import PREEMPTED_STATUS
from replicator.processes import Child
from replicator.sweeps import trials
from replicator.sweeps.trials import DONE, FAILED, PRUNED, RUNNING, STOPPED, Record, Trial

STOP, AT_ONCE = "stop", "at once"
POLL_SECONDS = 0.1
LOCK_SECONDS = 120.0  # The longest time that a trial waits for its earlier process to save.
_LAST_BYTES = 20_000


class Attempt:
  """Runs a trial in `folder/trials/ID`, or resumes the one that an earlier attempt left there.

  `folder` is the sweep's, and `cwd` is the working directory of the trial's command. The trial uses
  the CPU cores `cores`, or else all cores of this process.
  """

  def __init__(self, trial: Trial, folder: pathlib.Path, cwd: str,
               cores: Sequence[int] | None = None):
    self.trial = trial
    self._folder = folder / "trials" / trial.id
    self._stops = folder / STOP, self._folder / STOP
    self._cwd, self._cores = cwd, cores or ()
    self._begun = time.monotonic()
    self._child: Child | None = None
    self._is_stopping = False
    self._asked = ""  # The status to end with, once its process was asked to stop.
    self._log_begin = 0
    self._folder.mkdir(parents=True, exist_ok=True)
    self._record = trials.read_record(self._folder) or Record(trial.id, trial.bindings)
    self._record.command = trials.shell_command(trial, self._folder)
    self._lock = (self._folder / ".lock").open("w")

  def poll(self) -> Record | None:
    """Starts, watches or stops the process; returns the record once the trial has ended."""
    if self._child is None:
      return self._try_to_start()
    if (code := self._child.process.poll()) is not None:
      return self._end(code)
    if self._is_hurried():
      self._child.process.kill()
    elif not self._asked and (wish := self._wish()):
      self._asked = wish
      self._child.process.terminate()
    return None

  def run(self) -> Record:
    """Runs the trial to its end."""
    while (record := self.poll()) is None:
      time.sleep(POLL_SECONDS)
    return record

  def stop(self) -> None:
    """Makes the next `poll` ask the trial to save and end."""
    self._is_stopping = True

  def _wish(self) -> str:
    if self._is_stopping or self._stops[0].exists():
      return STOPPED
    return PRUNED if self._stops[1].exists() else ""

  def _is_hurried(self) -> bool:
    if not self._asked:
      return False
    try:
      return self._stops[0].read_text() == AT_ONCE
    except FileNotFoundError:
      return False

  def _try_to_start(self) -> Record | None:
    if self._record.status == DONE:  # A cluster has started it again after its end.
      self._lock.close()
      return self._record
    if asked := self._wish():
      return self._write(asked, None)
    try:
      fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
      if time.monotonic() < self._begun + LOCK_SECONDS:
        return None
      return self._write(FAILED, None, "another process still runs this trial")
    try:
      self._start()
    except OSError as error:
      return self._write(FAILED, None, f"cannot be started: {error}")
    return None

  def _start(self) -> None:
    self._begun = time.monotonic()
    # TensorFlow's thread pools follow the affinity; OpenMP reads a variable.
    environment = {"OMP_NUM_THREADS": str(len(self._cores))} if self._cores else {}
    with (self._folder / trials.LOG).open("ab") as log:
      self._log_begin = log.tell()
      self._child = Child(
          self.trial.command(self._folder), environment, cores=self._cores,
          end_signal=signal.SIGTERM, end_status=PREEMPTED_STATUS, cwd=self._cwd, stdout=log,
          pass_fds=[self._lock.fileno()])  # The process holds the lock, even if this one dies.
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
    self._stops[1].unlink(missing_ok=True)
    self._lock.close()
    return self._record

  def _last_line(self) -> str:
    with (self._folder / trials.LOG).open("rb") as log:
      end = log.seek(0, os.SEEK_END)
      log.seek(max(self._log_begin, end - _LAST_BYTES))
      lines = log.read().decode(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
