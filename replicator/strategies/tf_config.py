"""TF_CONFIG: which processes make a run together, and which task is this process's.

A cluster manager or `replicator.launch` sets this environment variable in every process.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from replicator.errors import UsageError

_TRAINING_JOBS = {"multi_worker_mirrored": ("chief", "worker"),
                  "parameter_server": ("chief", "worker", "ps")}


def read(strategy: str) -> dict[str, Any]:
  """Reads and checks TF_CONFIG for 'multi_worker_mirrored' or 'parameter_server'.

  Returns `{"cluster": {job: [address]}, "task": {"type": str, "index": int}}`.

  Raises:
    UsageError: TF_CONFIG is missing, is not JSON, lacks a job, or gives this process a task that
      takes no part in the training.
  """
  launch = "python -m replicator.launch --workers=2 " + (
      "--ps=1 " if strategy == "parameter_server" else "") + "-- COMMAND"
  text = os.environ.get("TF_CONFIG")
  if not text:
    raise UsageError(f"Replicator.strategy = '{strategy}': the environment has no TF_CONFIG; "
                     f"start all processes with: {launch}")
  try:
    config = json.loads(text)
    cluster, task = config["cluster"], config["task"]
    kind, index = task["type"], task["index"]
    if not all(_is_address(each) for addresses in cluster.values() for each in addresses):
      raise TypeError
  except json.JSONDecodeError as error:
    raise UsageError(f"TF_CONFIG is not JSON ({error}): {text!r}") from error
  except (KeyError, TypeError, AttributeError) as error:
    raise UsageError(f"TF_CONFIG is {text!r}; it must have the form "
                     '{"cluster": {"worker": ["host:port", ...]}, '
                     '"task": {"type": "worker", "index": 0}}') from error
  required = [job for job in _TRAINING_JOBS[strategy]
              if job != "chief" or strategy == "parameter_server"]
  missing = [job for job in required if job not in cluster]
  if missing:
    raise UsageError(f"TF_CONFIG: '{strategy}' needs {', '.join(missing)} in the cluster, which "
                     f"has: {', '.join(cluster) or 'nothing'}")
  trains = [job for job in _TRAINING_JOBS[strategy] if job in cluster]
  if kind not in trains:  # TensorFlow allows an evaluator outside of the cluster that trains.
    raise UsageError(f"TF_CONFIG: the task type '{kind}' takes no part in '{strategy}' training; "
                     f"start only processes of the cluster's types {', '.join(trains)} (the "
                     "training evaluates by itself)")
  if not isinstance(index, int) or not 0 <= index < len(cluster[kind]):
    raise UsageError(f"TF_CONFIG: task index {index!r} is out of range; the cluster has "
                     f"{len(cluster[kind])} of type '{kind}', counted from 0")
  return config


def _is_address(text: Any) -> bool:
  """Whether a value is a string "host:port"."""
  return (isinstance(text, str) and bool(re.fullmatch(r".+:\d{1,5}", text))
          and int(text.rpartition(":")[2]) < 65536)


def worker_number(cluster: Mapping[str, Sequence[str]], kind: str, index: int) -> int:
  """The number of a 'chief' or 'worker' task among those that train; any chief comes first."""
  return index + (len(cluster.get("chief", ())) if kind == "worker" else 0)
