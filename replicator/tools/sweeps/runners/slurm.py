"""Runs trials as a Slurm job array, with one index per remaining trial.

The sweep writes the array's script, `slurm.sh`, into its folder, submits it with sbatch, and shows
the progress until the array ends. All machines must have access to the folder. `slurm.job` holds
the job ID.
"""

import functools
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable

from replicator.atomic import write_whole
from replicator.errors import UsageError
from replicator.tools.sweeps.sweep import Sweep
from replicator.tools.sweeps.trials import FAILED, RUNNING, STOPPED, WAITING

JOB = "slurm.job"
_QUEUE_SECONDS = 30.0  # Between calls of squeue.


def run(sweep: Sweep, jobs: int | None) -> None:
  """Submits the remaining trials, `jobs` at a time if given; returns when all have ended.

  Raises:
    UsageError: sbatch is missing or rejects the script, an earlier array is still in the queue, or
      the trials are not known in advance.
  """
  if sweep.file.optuna or sweep.file.population:
    key = "optuna" if sweep.file.optuna else "population"
    raise UsageError(f"sweep.{key} with --runner=slurm: the trials of an array must be known "
                     "before it is submitted; use --runner=ray or --runner=local")
  if shutil.which("sbatch") is None:
    raise UsageError("--runner=slurm: there is no sbatch here; run it on a machine of the cluster")
  file = sweep.folder / JOB
  if file.exists() and _is_in_queue(job := file.read_text()):
    raise UsageError(f"--workdir={sweep.folder}: job {job} of this sweep is still in the queue; "
                     f"wait for it, or cancel it with 'scancel {job}'")
  sweep.run(_Array(sweep, jobs).add, slots=lambda: sweep.search.count)


def _is_in_queue(job: str) -> bool:
  """Returns whether the job is in Slurm's queue, or may be because Slurm does not answer."""
  process = subprocess.run(["squeue", "--noheader", f"--jobs={job}"], capture_output=True,
                           text=True)
  if process.returncode:  # Slurm forgets a job a few minutes after it ends.
    return "Invalid job id" not in process.stderr
  return bool(process.stdout.strip())


class _Array:
  """A job array of the added trials, submitted when the first one is polled."""

  def __init__(self, sweep: Sweep, jobs: int | None):
    self._sweep, self._jobs = sweep, jobs
    self._trials: list[str] = []
    self._job = ""
    self._is_canceled = False
    self._asked, self._is_in_queue = time.monotonic(), True

  def add(self, trial_id: str) -> Callable[[], bool]:
    """Adds an index to the array; returns a function that tells whether its trial has ended."""
    self._trials.append(trial_id)
    return functools.partial(self._has_ended, trial_id)

  def _has_ended(self, trial_id: str) -> bool:
    if not self._job and not self._sweep.stopping:
      self._submit()
    if self._sweep.stopping and not self._is_canceled:
      self._is_canceled = True
      if self._job:  # Running trials save by themselves.
        subprocess.run(["scancel", "--state=PENDING", self._job], capture_output=True)
    if self._job and time.monotonic() > self._asked + _QUEUE_SECONDS:
      self._asked, self._is_in_queue = time.monotonic(), _is_in_queue(self._job)
    # Read after the queue, so that an ended task has written its record.
    status = self._sweep.status(trial_id)
    if status == WAITING and self._sweep.stopping:
      return self._sweep.give_up(trial_id, STOPPED)
    if status in (RUNNING, WAITING) and not self._is_in_queue:
      return self._sweep.give_up(
          trial_id, FAILED, f"job {self._job} left Slurm's queue before it finished")
    return status not in (RUNNING, WAITING)

  def _submit(self) -> None:
    folder = self._sweep.folder.resolve()
    at_a_time = f"%{self._jobs}" if self._jobs else ""
    options = [f"--job-name={folder.name}", f"--array=0-{len(self._trials) - 1}{at_a_time}",
               f"--output={folder}/slurm-%A_%a.out",
               "--signal=B:TERM@120",  # Before the time limit, so that the trial saves.
               *([f"--gpus={gpus}"] if (gpus := self._sweep.file.gpus_per_trial) else []),
               *self._sweep.file.slurm]
    command = shlex.join(
        [sys.executable, "-m", "replicator.tools.sweeps.trial_process", str(folder)])
    script = folder / "slurm.sh"
    script.write_text("\n".join([
        "#!/bin/bash", *(f"#SBATCH {option}" for option in options),
        f"trials=({shlex.join(self._trials)})", f"cd {shlex.quote(os.getcwd())} || exit 1",
        f'exec {command} "${{trials[SLURM_ARRAY_TASK_ID]}}"', ""]))
    process = subprocess.run(["sbatch", "--parsable", str(script)], capture_output=True, text=True)
    if process.returncode:
      reason = (process.stderr.strip().splitlines() or ["it printed nothing"])[-1]
      raise UsageError(f"--runner=slurm: sbatch rejects {script}: {reason}")
    self._job = process.stdout.strip().partition(";")[0]
    write_whole(folder / JOB, self._job)
