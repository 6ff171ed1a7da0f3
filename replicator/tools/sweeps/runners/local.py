"""Runs trials as processes on this machine, which share its cores and have their own GPUs."""

import os
import pathlib
from collections.abc import Callable

from replicator.errors import UsageError
from replicator.tools.sweeps.sweep import Sweep
from replicator.tools.sweeps.trial_process import Attempt
from replicator.tools.sweeps.trials import Record
from replicator.training.workdir.provenance import usable_cores

CORES = 2  # Cores per trial, unless the command line sets how many trials run at a time.


def run(sweep: Sweep, jobs: int | None) -> None:
  """Runs the remaining trials, `jobs` at a time; returns when all have ended or stopped.

  Raises:
    UsageError: there are not enough GPUs for `jobs` trials at a time.
  """
  gpus = usable_gpus()
  free = groups(gpus, sweep.file.gpus_of_trial(len(gpus)), jobs)
  jobs, threads = divided(jobs or len(free) or None)

  def start(trial_id: str) -> Callable[[], Record | None]:
    group = free.pop(0) if free else None
    attempt = Attempt(trial_id, sweep.folder, threads, gpus=group)

    def poll() -> Record | None:
      record = attempt.poll()
      if record and group:
        free.append(group)
      return record
    return poll

  sweep.run(start, slots=lambda: jobs)


def divided(jobs: int | None) -> tuple[int, int]:
  """Returns how many trials run at a time on this machine, and the threads per trial."""
  jobs = jobs or max(1, usable_cores() // CORES)
  return jobs, max(1, usable_cores() // jobs)


def usable_gpus() -> list[str]:
  """Returns the GPUs available to this process, by their names in CUDA_VISIBLE_DEVICES."""
  visible = os.environ.get("CUDA_VISIBLE_DEVICES")
  if visible is None:
    return [str(i) for i, _ in enumerate(pathlib.Path("/dev").glob("nvidia[0-9]*"))]
  return [name for name in map(str.strip, visible.split(",")) if name not in ("", "-1")]


def groups(gpus: list[str], each: int, jobs: int | None) -> list[str]:
  """Groups GPUs for trials that run at the same time, as `["0,1", "2,3"]`; [] if all share them.

  Raises:
    UsageError: there are not enough GPUs for `jobs` trials at a time.
  """
  if not each:
    return []
  if len(gpus) < each * (jobs or 1):
    raise UsageError(
        f"{f'--jobs={jobs}' if jobs else 'the sweep'}: each trial gets {each} of the {len(gpus)} "
        "GPUs here (sweep.gpus_per_trial); run fewer trials at a time, or let them share all GPUs "
        "with sweep.gpus_per_trial = 0")
  return [",".join(gpus[i:i + each]) for i in range(0, len(gpus) - each + 1, each)]
