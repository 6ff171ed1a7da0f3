"""One process of a trial: started, watched, asked to stop, and recorded.

Every runner runs its trials with this, on whatever machine. The sweep asks by files, which all
machines see: `stop` in the sweep's folder for all trials, which ends them `at once` if it says
so, and `stop` in a trial's folder to prune that one.
"""

import contextlib
import ctypes
import fcntl
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from replicator.errors import PREEMPTED_STATUS
from replicator.sweeps import trials
from replicator.sweeps.trials import DONE, FAILED, PRUNED, RUNNING, STOPPED, Record, Trial

STOP, AT_ONCE = "stop", "at once"
POLL_SECONDS = 0.1
LOCK_SECONDS = 120.0
"""So long a trial waits for an earlier process of it that still saves."""

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_LAST_BYTES = 20_000


class Attempt:
  """Runs a trial in `folder/trials/ID`, a new one or one that an earlier attempt left.

  Args:
    trial: what to run.
    folder: of the sweep.
    cwd: where its command is meant to be typed.
    cores: the CPU cores that it may use; None for all that this process may.
  """

  def __init__(self, trial: Trial, folder: pathlib.Path, cwd: str,
               cores: Sequence[int] | None = None):
    self.trial = trial
    self._stops = folder / STOP, folder / "trials" / trial.id / STOP
    self._folder = folder / "trials" / trial.id
    self._cwd, self._cores = cwd, cores
    self._begun = time.monotonic()
    self._process: subprocess.Popen | None = None
    self._is_stopping = False
    self._asked = ""  # Since when its process was asked: the status that it shall end with.
    self._log_begin = 0
    self._folder.mkdir(parents=True, exist_ok=True)
    self._record = (trials.read_record(self._folder)
                    or Record(trial.id, trial.bindings))
    self._record.command = trials.shell_command(trial, self._folder)
    self._lock = (self._folder / ".lock").open("w")

  def poll(self) -> Record | None:
    """Goes on with it; the record once it has ended, and None before."""
    if self._process is None:
      return self._try_to_start()
    if (code := self._process.poll()) is not None:
      return self._end(code)
    if self._is_hurried():
      self._process.kill()
    elif not self._asked and self._wish():
      self._asked = self._wish()
      self._process.terminate()
    return None

  def run(self) -> Record:
    """Runs it to its end."""
    while (record := self.poll()) is None:
      time.sleep(POLL_SECONDS)
    return record

  def stop(self) -> None:
    """Asks it to save and end; `poll` does it."""
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
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if self._cores:  # As TensorFlow's thread pools are, by the affinity.
      environment["OMP_NUM_THREADS"] = str(len(self._cores))
    with (self._folder / trials.LOG).open("ab") as log:
      self._log_begin = log.tell()
      self._process = subprocess.Popen(
        self.trial.command(self._folder), cwd=self._cwd, env=environment,
        stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C goes to the sweep alone, which asks its trials.
        pass_fds=[self._lock.fileno()],  # Held as long as the process lives, whoever else dies.
        preexec_fn=_in_child(os.getpid(), self._cores))
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
    if self._process is not None:
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
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def _in_child(parent: int, cores: Sequence[int] | None) -> Callable[[], None] | None:
  """For the new process: its cores; and Linux shall ask it to save when its parent dies."""
  if _libc is None:
    return None

  def in_child() -> None:  # No more than system calls: the parent may have threads.
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    # A worker of Ray blocks signals, and its children would inherit that.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if cores:
      os.sched_setaffinity(0, cores)
    if os.getppid() != parent:  # It was gone before the first line.
      os._exit(PREEMPTED_STATUS)
  return in_child


def divided(cores: Sequence[int], parts: int) -> list[list[int]]:
  """Equal parts of the cores: `[0, 1, 2, 3, 4], 2 -> [[0, 1], [2, 3]]`; of few, shared ones."""
  each = max(1, len(cores) // parts)
  return [[cores[(part * each + i) % len(cores)] for i in range(each)] for part in range(parts)]


def usable_cores() -> list[int]:
  """The CPU cores that this process may use."""
  if hasattr(os, "sched_getaffinity"):
    return sorted(os.sched_getaffinity(0))
  return list(range(os.cpu_count() or 1))


@contextlib.contextmanager
def free_cores(count: int) -> Iterator[list[int]]:
  """So many cores of this machine that no other trial has taken by this function."""
  import tempfile
  all_parts = divided(usable_cores(), max(1, len(usable_cores()) // count))
  for part in all_parts:
    name = f"replicator-{os.getuid()}-cores-{'-'.join(map(str, part))}"
    with open(os.path.join(tempfile.gettempdir(), name), "w") as lock:
      try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except OSError:
        continue
      yield part
      return
  yield all_parts[0]  # More trials than fit: they share.
