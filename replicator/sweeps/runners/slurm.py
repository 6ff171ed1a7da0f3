"""Trials as a Slurm array, one index for each trial that is left.

The sweep writes the script of the array, `slurm.sh`, into its folder, submits it with sbatch, and
shows the progress until the array ends. All machines must see the folder.
"""

import dataclasses
import functools
import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable

from replicator.atomic import write_whole
from replicator.errors import UsageError
from replicator.sweeps.sweep import Sweep
from replicator.sweeps.trials import FAILED, RUNNING, STOPPED, WAITING, Trial

TRIALS = "slurm.json"
POLL_SECONDS = 2.0
_QUEUE_SECONDS = 30.0  # Between two calls of squeue.


def run(sweep: Sweep, jobs: int | None, cwd: str) -> None:
  """Submits the trials that are left, `jobs` at a time if given; returns when all have ended.

  Raises:
    UsageError: sbatch is missing or rejects the script, or an earlier array is in the queue.
  """
  if sweep.file.optuna:
    raise UsageError("sweep.optuna with --runner=slurm: the trials of an array must be known "
                     "before it is submitted; use --runner=ray or --runner=local")
  if shutil.which("sbatch") is None:
    raise UsageError("--runner=slurm: there is no sbatch here; type it on a machine of the cluster")
  _check_queue(sweep)
  sweep.run(_Array(sweep, jobs, cwd).add, slots=lambda: sweep.search.count,
            poll_seconds=POLL_SECONDS)


def _check_queue(sweep: Sweep) -> None:
  try:
    job = json.loads((sweep.folder / TRIALS).read_text())["job"]
  except (OSError, ValueError, KeyError):
    return
  if _is_in_queue(job):
    raise UsageError(f"--workdir={sweep.folder}: job {job} of this sweep is still in the queue; "
                     f"wait for it, or end it with 'scancel {job}'")


def _is_in_queue(job: str) -> bool:
  """Whether the job is in Slurm's queue; True where no squeue can say so."""
  if shutil.which("squeue") is None:
    return True
  process = subprocess.run(["squeue", "--noheader", f"--jobs={job}"], capture_output=True,
                           text=True)
  return bool(process.stdout.strip())


class _Array:
  """An array of the added trials, submitted when the first one is looked at."""

  def __init__(self, sweep: Sweep, jobs: int | None, cwd: str):
    self._sweep, self._jobs, self._cwd = sweep, jobs, cwd
    self._trials: list[Trial] = []
    self._job = ""
    self._is_canceled = False
    self._asked, self._is_in_queue = time.monotonic(), True

  def add(self, trial: Trial, slot: int) -> Callable[[], bool]:
    """Adds an index to the array; returns a function that says whether its trial has ended."""
    self._trials.append(trial)
    return functools.partial(self._has_ended, trial.id)

  def _has_ended(self, trial_id: str) -> bool:
    if not self._job and not self._sweep.stopping:
      self._submit()
    if self._sweep.stopping and not self._is_canceled:
      self._is_canceled = True
      if self._job and shutil.which("scancel"):  # The indices that run save by themselves.
        subprocess.run(["scancel", "--state=PENDING", self._job], capture_output=True)
    if self._job and time.monotonic() > self._asked + _QUEUE_SECONDS:
      self._asked, self._is_in_queue = time.monotonic(), _is_in_queue(self._job)
    # Read after the queue: the last task has written its record.
    status = self._sweep.status(trial_id)
    if status == WAITING and self._sweep.stopping:
      return self._sweep.give_up(trial_id, STOPPED)
    if status in (RUNNING, WAITING) and not self._is_in_queue:
      return self._sweep.give_up(
          trial_id, FAILED, f"job {self._job} left Slurm's queue before its end")
    return status not in (RUNNING, WAITING)

  def _submit(self) -> None:
    folder = self._sweep.folder.resolve()
    facts = {"cwd": self._cwd, "trials": list(map(dataclasses.asdict, self._trials))}
    write_whole(folder / TRIALS, json.dumps(facts, indent=2))
    at_a_time = f"%{self._jobs}" if self._jobs else ""
    options = [f"--job-name={folder.name}", f"--array=0-{len(self._trials) - 1}{at_a_time}",
               f"--output={folder}/slurm-%A_%a.out",
               "--signal=B:TERM@120",  # Before the time limit, so that the trial saves.
               *self._sweep.file.slurm]
    command = shlex.join([sys.executable, "-m", "replicator.sweeps.slurm_task", str(folder)])
    script = folder / "slurm.sh"
    script.write_text("\n".join([
        "#!/bin/bash", *(f"#SBATCH {option}" for option in options),
        f"cd {shlex.quote(self._cwd)} || exit 1", f'exec {command} "$SLURM_ARRAY_TASK_ID"', ""]))
    process = subprocess.run(["sbatch", "--parsable", str(script)], capture_output=True, text=True)
    if process.returncode:
      reason = (process.stderr.strip().splitlines() or ["it printed nothing"])[-1]
      raise UsageError(f"--runner=slurm: sbatch rejects {script}: {reason}")
    self._job = process.stdout.strip().partition(";")[0]
    write_whole(folder / TRIALS, json.dumps({**facts, "job": self._job}, indent=2))
