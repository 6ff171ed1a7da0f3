"""Checks that the processes of a run agree on its configuration, its data and each collective.

All replicas and workers must call the same collectives in the same order, or a step hangs.
"""

import itertools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from replicator.configuration.differences import differences
from replicator.console.versions import versions
from replicator.errors import UsageError
from replicator.internals import tensorflow_internals
from replicator.step.context import StepContext

import gin

MAX_SECONDS = 30.0
"""A larger difference between clocks is reported, because logs and locks contain times."""

_meetings = itertools.count()
_REMEDY = "must make the same calls in the same order"


def check(worker: int, workers: int, examples: int | None = None,
          code: Callable[[], Mapping[str, str]] = dict) -> None:
  """Checks, before training, that all workers were started with the same configuration.

  All workers must call it. `examples` is the number of examples that this worker sees, if known,
  and `code` returns a digest of each file of the program. Each worker warns if the clocks differ.

  Raises:
    UsageError: a setting, a package version, the number of examples, or a file that both workers
      have differs; all workers raise the same error.
  """
  if workers == 1:
    return
  meeting = next(_meetings)
  mine = {"versions": versions(), "config": gin.config_str(max_line_length=10 ** 6),
          "examples": examples, "code": dict(code())}
  tensorflow_internals.meet(f"replicator/start/{meeting}")
  mine["time"] = time.time()
  first, *others = tensorflow_internals.exchange(
      f"replicator/facts/{meeting}", mine, worker, workers)
  for number, other in enumerate(others, 1):
    pairs = {**{name: (version, other["versions"].get(name))
                for name, version in first["versions"].items()},
             **differences(first["config"], other["config"]),
             "the number of examples": (first["examples"], other["examples"]),
             # Workers may have imported different files.
             **{f"the code of {name}": (first["code"][name], digest)
                for name, digest in other["code"].items() if name in first["code"]}}
    for name, (of_first, of_other) in pairs.items():
      if of_first != of_other:
        raise UsageError(
            f"{name} is {of_first or 'not set'} on worker 0, but {of_other or 'not set'} on worker "
            f"{number}; start all processes with the same configuration, versions, code and data")
  times = [first["time"], *(each["time"] for each in others)]
  apart = max(times) - min(times)
  if apart > MAX_SECONDS:
    print(f"warning: the clocks of the workers are {apart:.0f} seconds apart; synchronize them, "
          "or times in logs will be wrong", file=sys.stderr, flush=True)


def check_replicas(replicas: Sequence[StepContext]) -> None:
  """Raises a UsageError if the replicas of this process made different calls.

  After an error, some may not have finished the step; these may have made fewer calls.
  """
  said = [[f"calls {call}" for call in replica.collectives]
          + ["has ended its step"] * replica.has_ended for replica in replicas]
  for number, own in enumerate(said):
    for first, other in zip(said[0], own, strict=False):
      if first != other:
        raise UsageError(f"replica 0 {first}, but replica {number} {other}; every replica "
                         f"{_REMEDY}")


def check_workers(worker: int, workers: int, calls: list[str]) -> None:
  """Compares the collectives of this worker's step with the other workers'; all must call it.

  Raises:
    UsageError: they differ, so running the step would hang; the error names this worker's call.
  """
  of_workers = _of_all("calls", worker, workers, calls)
  for place, each in enumerate(itertools.zip_longest(*of_workers), 1):
    if len({*each}) > 1:
      call = f"calls {each[worker]}" if each[worker] else "has ended"
      raise UsageError(f"worker {worker} {call} as collective {place} of the step, but other "
                       f"workers do not; all {_REMEDY}")


def differing(worker: int, workers: int, values: Mapping[str, str]) -> list[str]:
  """Returns the names of the values that differ between workers; all workers must call it."""
  of_workers = _of_all("values", worker, workers, values)
  return [name for name in values if len({each.get(name) for each in of_workers}) > 1]


def is_shared(worker: int, workers: int, value: str) -> bool:
  """Returns whether any two workers have the same value; all workers must call it."""
  return len({*_of_all("shared", worker, workers, value)}) < workers


def _of_all(what: str, worker: int, workers: int, value: Any) -> list[Any]:
  if workers == 1:
    return [value]
  return tensorflow_internals.exchange(
      f"replicator/{what}/{next(_meetings)}", value, worker, workers)
