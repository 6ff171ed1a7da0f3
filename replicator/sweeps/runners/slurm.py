"""Trials as a Slurm array, one index for each trial that is left.

The sweep writes the script of the array, `slurm.sh`, into its folder, submits it with sbatch, and
shows the progress until the array ends. All machines must see the folder.
"""

import dataclasses
import json
import pathlib
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence

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
  left: list[Trial] = []
  while trial := sweep.next():
    left.append(trial)
  if left:
    with sweep.stopped_by_signals():
      job = _submit(sweep, left, jobs, cwd)
      _wait(sweep, job)


def _check_queue(sweep: Sweep) -> None:
  try:
    job = json.loads((sweep.folder / TRIALS).read_text())["job"]
  except (OSError, ValueError, KeyError):
    return
  if _in_queue(job):
    raise UsageError(f"--workdir={sweep.folder}: job {job} of this sweep is still in the queue; "
                     f"wait for it, or end it with 'scancel {job}'")


def _submit(sweep: Sweep, left: Sequence[Trial], jobs: int | None, cwd: str) -> str:
  folder = sweep.folder.resolve()
  facts = {"cwd": cwd, "trials": [dataclasses.asdict(trial) for trial in left]}
  write_whole(folder / TRIALS, json.dumps(facts, indent=2))
  script = folder / "slurm.sh"
  script.write_text(_script(sweep, folder, len(left), jobs, cwd))
  process = subprocess.run(["sbatch", "--parsable", str(script)], capture_output=True, text=True)
  if process.returncode:
    lines = process.stderr.strip().splitlines() or ["it printed nothing"]
    raise UsageError(f"--runner=slurm: sbatch rejects {script}: {lines[-1]}")
  job = process.stdout.strip().partition(";")[0]
  write_whole(folder / TRIALS, json.dumps({**facts, "job": job}, indent=2))
  return job


def _script(sweep: Sweep, folder: pathlib.Path, count: int, jobs: int | None, cwd: str) -> str:
  at_a_time = f"%{jobs}" if jobs else ""
  options = [f"--job-name={folder.name}", f"--array=0-{count - 1}{at_a_time}",
             f"--output={folder}/slurm-%A_%a.out",
             "--signal=B:TERM@120",  # Before the time limit, so that the trial saves.
             *sweep.file.slurm]
  lines = "\n".join(f"#SBATCH {option}" for option in options)
  command = shlex.join([sys.executable, "-m", "replicator.sweeps.slurm_task", str(folder)])
  return (f"#!/bin/bash\n{lines}\ncd {shlex.quote(cwd)} || exit 1\n"
          f'exec {command} "$SLURM_ARRAY_TASK_ID"\n')


def _wait(sweep: Sweep, job: str) -> None:
  asked_queue, canceled = time.monotonic(), False
  while sweep.running():
    if sweep.stopping and not canceled:
      if shutil.which("scancel"):
        subprocess.run(["scancel", "--state=PENDING", job], capture_output=True)
      canceled = True
    sweep.look()
    in_queue = True
    if time.monotonic() > asked_queue + _QUEUE_SECONDS:
      asked_queue, in_queue = time.monotonic(), _in_queue(job)
    for record in sweep.running():  # Read after the queue: the last task has written its record.
      if record.status not in (RUNNING, WAITING):
        sweep.ended(record.id)
      elif sweep.stopping and record.status == WAITING:
        sweep.give_up(record.id, STOPPED)
      elif not in_queue:
        sweep.give_up(record.id, FAILED, f"job {job} left Slurm's queue before its end")
    if sweep.running():
      time.sleep(POLL_SECONDS)


def _in_queue(job: str) -> bool:
  """Whether the job is in Slurm's queue; True where no squeue can say so."""
  if shutil.which("squeue") is None:
    return True
  process = subprocess.run(["squeue", "--noheader", f"--jobs={job}"], capture_output=True,
                           text=True)
  return bool(process.stdout.strip())
