"""Runs trials as Ray tasks, on a local cluster or on the one at RAY_ADDRESS.

Ray restarts a task if its worker or machine dies; the trial then resumes. All machines must have
access to the sweep's folder and the experiment.
"""

import functools
import os
import pathlib
from typing import Any

from replicator.errors import first_line
from replicator.tools import ray_cluster
from replicator.tools.sweeps.runners import local
from replicator.tools.sweeps.sweep import Sweep
from replicator.tools.sweeps.trial_process import Attempt
from replicator.tools.sweeps.trials import FAILED, STOPPED, WAITING

_OBJECT_BYTES = 100 * 2 ** 20  # Tasks pass little data; Ray's default is 30% of the memory.
_MAX_RETRIES = 3


def run(sweep: Sweep, jobs: int | None) -> None:
  """Runs the remaining trials, `jobs` at a time; returns when all have ended or stopped.

  Raises:
    UsageError: Ray is not installed, or its cluster does not answer.
  """
  # Lets trials that reserve no GPUs see all GPUs of their machine.
  os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
  each = local.CORES
  if not ray_cluster.address():
    jobs, each = local.divided(jobs)
  # A local cluster runs `jobs` trials at a time, even if they need more cores than there are.
  ray = ray_cluster.connect("--runner=ray", num_cpus=(jobs or 1) * each,
                            object_store_memory=_OBJECT_BYTES)
  gpus = sweep.file.gpus_of_trial(int(ray.cluster_resources().get("GPU", 0)))
  task = ray.remote(num_cpus=each, num_gpus=gpus, max_retries=_MAX_RETRIES)(_run_trial)
  try:
    sweep.run(
        lambda trial_id: functools.partial(
            _has_ended, ray, sweep, trial_id,
            task.remote(trial_id, sweep.folder.resolve(), each, os.getcwd())),
        # One task more than fits makes an autoscaling cluster scale up.
        slots=lambda: jobs or int(ray.cluster_resources().get("CPU", 0)) // each + 1)
  finally:
    ray.shutdown()


def _has_ended(ray: Any, sweep: Sweep, trial_id: str, task: Any) -> bool:
  """Returns whether a trial has ended, its worker died, or a stopping sweep will not start it."""
  if not ray.wait([task], timeout=0)[0]:
    return sweep.stopping and sweep.status(trial_id) == WAITING and sweep.give_up(trial_id, STOPPED)
  try:
    ray.get(task)
  except ray.exceptions.RayError as error:
    cause = getattr(error, "cause", None) or error
    sweep.give_up(trial_id, FAILED,
                  f"its Ray task failed: {type(cause).__name__}: {first_line(cause)}")
  return True


def _run_trial(trial_id: str, folder: pathlib.Path, threads: int, cwd: str) -> None:
  """Runs a trial in a Ray worker."""
  Attempt(trial_id, folder, threads, cwd).run()
