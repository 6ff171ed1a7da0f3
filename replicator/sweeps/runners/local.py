"""Trials as processes on this machine, which divide its cores among them."""

import time

from replicator.sweeps import trial_process
from replicator.sweeps.runners import cores
from replicator.sweeps.sweep import Sweep
from replicator.sweeps.trial_process import Attempt


def run(sweep: Sweep, jobs: int | None, cwd: str) -> None:
  """Runs the trials that are left, `jobs` at a time; returns when all have ended or stopped."""
  jobs = jobs or cores.default_jobs()
  parts = cores.divided(cores.usable(), jobs)
  running: dict[int, Attempt] = {}
  with sweep.stopped_by_signals():
    try:
      while True:
        for part in set(range(jobs)) - set(running):
          if trial := sweep.next():
            running[part] = Attempt(trial, sweep.folder, cwd, parts[part])
        if not running:
          return
        for part, trial_attempt in list(running.items()):
          if trial_attempt.poll():
            del running[part]
            sweep.ended(trial_attempt.trial.id)
        sweep.look()
        time.sleep(trial_process.POLL_SECONDS)
    finally:  # After an error of the sweep's own, its trials save.
      if running:
        sweep.stop()
      for trial_attempt in running.values():
        trial_attempt.run()
