"""Trials as processes of this machine, so many at once, the cores divided among them."""

import time

from replicator.sweeps import attempt
from replicator.sweeps.attempt import Attempt
from replicator.sweeps.stopping import Stopping
from replicator.sweeps.sweep import Sweep

_CORES_FOR_EACH = 2


def default_jobs() -> int:
  """How many trials at once, when nobody says: two cores for each."""
  return max(1, len(attempt.usable_cores()) // _CORES_FOR_EACH)


def run(sweep: Sweep, jobs: int | None, cwd: str) -> None:
  """Runs what is missing of the sweep; returns when all have ended, or have been stopped."""
  jobs = jobs or default_jobs()
  parts = attempt.divided(attempt.usable_cores(), jobs)
  running: dict[int, Attempt] = {}
  with Stopping(sweep):
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
        time.sleep(attempt.POLL_SECONDS)
    finally:  # An error of the sweep's own: its trials save.
      if running:
        sweep.stop()
      for trial_attempt in running.values():
        trial_attempt.run()
