"""Trials as Ray tasks, on a local cluster or on the one that RAY_ADDRESS names.

Ray starts a task again when its worker or its machine dies; the trial then resumes. All machines
must see the sweep's folder and the experiment.
"""

import os
import pathlib
from collections.abc import Callable
from typing import Any

from replicator import ray_cluster
from replicator.errors import first_line
from replicator.sweeps import trial_process
from replicator.sweeps.runners import cores
from replicator.sweeps.sweep import Sweep
from replicator.sweeps.trial_process import Attempt
from replicator.sweeps.trials import FAILED, STOPPED, WAITING, Trial

_OBJECT_BYTES = 100 * 2 ** 20  # Tasks pass almost nothing; Ray would take 30 % of the memory.
_MAX_RETRIES = 3


def run(sweep: Sweep, jobs: int | None, cwd: str) -> None:
  """Runs the trials that are left, `jobs` at a time; returns when all have ended or stopped.

  Raises:
    UsageError: Ray is not installed, or its cluster does not answer.
  """
  # Trials see the GPUs of their machine, although their tasks reserve none.
  os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
  each = cores.FOR_EACH
  if not ray_cluster.address():
    jobs = jobs or cores.default_jobs()
    each = len(cores.divided(cores.usable(), jobs)[0])
  # On a local cluster `jobs` trials run at a time, even if that is more than there are cores.
  ray = ray_cluster.connect("--runner=ray", num_cpus=(jobs or 1) * each,
                            object_store_memory=_OBJECT_BYTES)
  task = ray.remote(num_cpus=each, max_retries=_MAX_RETRIES)(_run_trial)
  submit = lambda trial: task.remote(trial, sweep.folder.resolve(), cwd, each)
  # One task more than fits makes an autoscaling cluster grow.
  slots = lambda: jobs or int(ray.cluster_resources().get("CPU", 0)) // each + 1
  try:
    with sweep.stopped_by_signals():
      _run_tasks(ray, sweep, submit, slots)
  finally:
    ray.shutdown()


def _run_tasks(ray: Any, sweep: Sweep, submit: Callable[[Trial], Any],
               slots: Callable[[], int]) -> None:
  tasks: dict[Any, str] = {}
  try:
    while True:
      while len(tasks) < slots() and (trial := sweep.next()):
        tasks[submit(trial)] = trial.id
      if not tasks:
        return
      for task in ray.wait(list(tasks), timeout=trial_process.POLL_SECONDS)[0]:
        _take(ray, sweep, task, tasks.pop(task))
      if sweep.stopping:  # Trials that Ray has not placed yet need no wait.
        waiting = {record.id for record in sweep.running() if record.status == WAITING}
        for task in [task for task, trial_id in tasks.items() if trial_id in waiting]:
          sweep.give_up(tasks.pop(task), STOPPED)
      sweep.look()
  finally:  # After an error of the sweep's own, its trials save.
    if tasks:
      sweep.stop()
      ray.wait(list(tasks), num_returns=len(tasks))


def _take(ray: Any, sweep: Sweep, task: Any, trial_id: str) -> None:
  """Records the end of a task's trial, or of its worker."""
  try:
    ray.get(task)
  except ray.exceptions.RayError as error:
    cause = getattr(error, "cause", None) or error
    sweep.give_up(trial_id, FAILED,
                  f"its Ray task failed: {type(cause).__name__}: {first_line(cause)}")
  else:
    sweep.ended(trial_id)


def _run_trial(trial: Trial, folder: pathlib.Path, cwd: str, count: int) -> None:
  """Runs the trial's command on `count` cores of the machine; Ray calls it in a worker."""
  with cores.free(count) as own:
    Attempt(trial, folder, cwd, own).run()
