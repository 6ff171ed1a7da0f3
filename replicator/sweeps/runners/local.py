"""Trials as processes on this machine, which share its cores."""

from replicator.sweeps.sweep import Sweep
from replicator.sweeps.trial_process import Attempt
from replicator.workdir.provenance import usable_cores

CORES = 2  # The cores of a trial, unless the command line says how many run at a time.


def run(sweep: Sweep, jobs: int | None) -> None:
  """Runs the trials that are left, `jobs` at a time; returns when all have ended or stopped."""
  jobs, threads = divided(jobs)
  sweep.run(lambda trial_id: Attempt(trial_id, sweep.folder, threads).poll, slots=lambda: jobs)


def divided(jobs: int | None) -> tuple[int, int]:
  """How many trials run at a time on this machine, and the number of threads of each."""
  jobs = jobs or max(1, usable_cores() // CORES)
  return jobs, max(1, usable_cores() // jobs)
