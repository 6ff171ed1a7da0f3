"""Trials as processes on this machine, and how they share its CPU cores."""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator, Sequence

from replicator.sweeps.sweep import Sweep
from replicator.sweeps.trial_process import Attempt

CORES = 2  # The cores of a trial, unless the command line says how many run at a time.


def run(sweep: Sweep, jobs: int | None, cwd: str) -> None:
  """Runs the trials that are left, `jobs` at a time; returns when all have ended or stopped."""
  parts = divided(usable_cores(), jobs or default_jobs())
  sweep.run(lambda trial, slot: Attempt(trial, sweep.folder, cwd, parts[slot]).poll,
            slots=lambda: len(parts))


def usable_cores() -> list[int]:
  """The CPU cores that this process may use."""
  if hasattr(os, "sched_getaffinity"):
    return sorted(os.sched_getaffinity(0))
  return list(range(os.cpu_count() or 1))


def default_jobs() -> int:
  """The number of trials at a time by default."""
  return max(1, len(usable_cores()) // CORES)


def divided(cores: Sequence[int], parts: int) -> list[list[int]]:
  """Equal parts, `[0, 1, 2, 3, 4], 2 -> [[0, 1], [2, 3]]`; parts share cores if there are few."""
  each = max(1, len(cores) // parts)
  return [[cores[(part * each + i) % len(cores)] for i in range(each)] for part in range(parts)]


@contextlib.contextmanager
def reserved_cores(count: int) -> Iterator[list[int]]:
  """Reserves `count` cores of this machine for the body; trials share cores if too few are free."""
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
  yield all_parts[0]
