"""All replicas and workers must call the same collectives in the same order, or a step hangs."""

import hashlib
from collections.abc import Sequence

import numpy as np

from replicator.errors import UsageError
from replicator.step.context import StepContext

_REMEDY = "must make the same calls in the same order"
_COMPARED = 256  # The number of calls of a step that workers compare.


def check_replicas(replicas: Sequence[StepContext]) -> None:
  """Raises a UsageError if the replicas of this process made different calls.

  After an error, some may not have ended the step; it is no mistake that these made fewer calls.
  """
  said = [[f"calls {call}" for call in replica.collectives]
          + ["has ended its step"] * replica.has_ended for replica in replicas]
  for number, own in enumerate(said):
    for first, other in zip(said[0], own, strict=False):
      if first != other:
        raise UsageError(f"replica 0 {first}, but replica {number} {other}; every replica "
                         f"{_REMEDY}")


def codes(calls: list[str]) -> np.ndarray:
  """A hash of each of the first 256 calls, to compare workers: int64 [256], padded with zeros."""
  numbers = [int.from_bytes(hashlib.sha256(call.encode()).digest()[:7], "little")
             for call in calls[:_COMPARED]]
  return np.array(numbers + [0] * (_COMPARED - len(numbers)), np.int64)


def check_workers(worker: int, calls: list[str], codes_of_replicas: np.ndarray) -> None:
  """Raises a UsageError if this worker's calls are not those of the others.

  `codes_of_replicas` are the `codes` of every replica of every worker, int64 [replicas, 256].
  """
  differs = (codes_of_replicas != codes_of_replicas[0]).any(axis=0)
  if differs.any():
    place = int(differs.argmax())
    call = f"calls {calls[place]}" if place < len(calls) else "has ended"
    raise UsageError(f"worker {worker} {call} as collective {place + 1} of the step, and other "
                     f"workers do not; all {_REMEDY}")
