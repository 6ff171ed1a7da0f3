"""Whether the processes of a run have one configuration, the same versions and data."""

import itertools
import json

import gin

from replicator.configuration.differences import differences
from replicator.errors import UsageError
from replicator.internals import tensorflow_internals
from replicator.workdir.provenance import versions

_meetings = itertools.count()


def check(worker: int, workers: int, examples: int | None = None) -> None:
  """Compares what this worker was started with to what the others were, before they train.

  All workers must call it, with the number of examples that they see, if that is known.

  Raises:
    UsageError: a setting, the version of a package or the number of examples differs; all workers
      get the same line.
  """
  if workers == 1:
    return
  mine = {"versions": versions(), "config": gin.config_str(max_line_length=10 ** 6),
          "examples": examples}
  all_ = [json.loads(text) for text in tensorflow_internals.exchange(
      f"replicator/facts/{next(_meetings)}", json.dumps(mine), worker, workers)]
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
