"""Whether the processes of a run have one configuration, the same versions, data and time."""

import itertools
import json
import time

import gin

from replicator.configuration.differences import differences
from replicator.errors import UsageError
from replicator.internals import tensorflow_internals
from replicator.workdir.provenance import versions

MAX_SECONDS = 30.0
"""Clocks that differ by more are reported; logs and locks hold times."""

_meetings = itertools.count()


def check(worker: int, workers: int, examples: int | None = None) -> list[str]:
  """Compares what this worker was started with to what the others were, before they train.

  All workers must call it, with the number of examples that they see, if that is known. Returns
  warnings: the clocks of two hosts may differ.

  Raises:
    UsageError: a setting, the version of a package or the number of examples differs; all workers
      get the same line.
  """
  if workers == 1:
    return []
  meeting = next(_meetings)
  mine = {"versions": versions(), "config": gin.config_str(max_line_length=10 ** 6),
          "examples": examples}
  tensorflow_internals.meet(f"replicator/start/{meeting}")
  mine["time"] = time.time()
  all_ = [json.loads(text) for text in tensorflow_internals.exchange(
      f"replicator/facts/{meeting}", json.dumps(mine), worker, workers)]
  first = all_[0]
  for number, other in enumerate(all_):
    named = {**{name: (value, other["versions"].get(name))
                for name, value in first["versions"].items()
                if value != other["versions"].get(name)},
             **differences(first["config"], other["config"])}
    if named:
      name, (of_first, of_other) = next(iter(named.items()))
      raise UsageError(
          f"{name} is {of_first or 'not set'} on worker 0, and {of_other or 'not set'} on worker "
          f"{number}; start all processes with the same configuration and versions")
    if other["examples"] != first["examples"]:
      raise UsageError(
          f"the data has {first['examples']} examples on worker 0, and {other['examples']} on "
          f"worker {number}; each worker must see all files, and the same ones")
  apart = max(each["time"] for each in all_) - min(each["time"] for each in all_)
  if apart <= MAX_SECONDS:
    return []
  return [f"warning: the clocks of the workers are {apart:.0f} seconds apart; set them, or times "
          "in logs are wrong"]
