"""TF_CONFIG: which processes make a run together, and which task is this process's.

`replicator launch` and some cluster managers set this environment variable in every process. For
the others it is made from the variables that they set.
"""

import contextlib
import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from replicator.errors import UsageError, nearest
from replicator.strategies.cluster.managers import Processes, of_kubernetes, of_sagemaker, of_slurm

import gin

READERS = {"slurm": of_slurm, "kubernetes": of_kubernetes, "sagemaker": of_sagemaker}
"""The managers that set variables of their own."""

STARTERS = {"ray": "RAY_RAYLET_PID", "spark": "SPARK_BUFFER_SIZE"}
"""The programs that start processes with a TF_CONFIG, and another variable that each sets."""

MANAGERS = ("auto", "tf_config", *READERS, *STARTERS)
"""What `Replicator.cluster` may name."""

_TRAINING_JOBS = {"multi_worker_mirrored": ("chief", "worker"),
                  "parameter_server": ("chief", "worker", "ps")}


def found(environment: Mapping[str, str], manager: str = "auto") -> Processes | None:
  """The processes that a manager describes; None if none does, or TF_CONFIG takes its place.

  Raises a UsageError as the readers do.
  """
  if manager not in ("auto", *READERS) or (manager == "auto" and environment.get("TF_CONFIG")):
    return None
  readers = READERS.values() if manager == "auto" else [READERS[manager]]
  return next((processes for read in readers if (processes := read(environment))), None)


def number_of(environment: Mapping[str, str]) -> int | None:
  """The number of this process among those that train, by variables that are not checked yet.

  It is 0 where they describe none, or are mistaken, which others report; and None for a process
  that does not train.
  """
  with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError, UsageError):
    if processes := found(environment):
      return processes.rank
    config = json.loads(environment.get("TF_CONFIG") or "{}")
    task = config["task"]
    if task["type"] not in ("chief", "worker"):
      return None
    return worker_number(config["cluster"], task["type"], task["index"])
  return 0


def is_chief(environment: Mapping[str, str]) -> bool:
  """Whether this process is the chief of its run, by variables that are not checked yet."""
  return number_of(environment) == 0


def are_several(environment: Mapping[str, str]) -> bool:
  """Whether this process is one of several, by variables that are not checked yet."""
  with contextlib.suppress(UsageError):
    if processes := found(environment):
      return len(processes.addresses) > 1
  return bool(environment.get("TF_CONFIG"))


def check_used(strategy: str, environment: Mapping[str, str]) -> None:
  """Raises a UsageError if TF_CONFIG has several workers, and `strategy` is of one process."""
  workers = 0
  with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):  # Nobody reads it.
    cluster = json.loads(environment["TF_CONFIG"])["cluster"]
    workers = sum(len(cluster.get(job, ())) for job in ("chief", "worker"))
  if strategy not in _TRAINING_JOBS and workers > 1:
    raise UsageError(f"Replicator.strategy = '{strategy}': trains in one process, and TF_CONFIG "
                     f"has {workers}, each of which would train by itself; write "
                     "'multi_worker_mirrored' or 'parameter_server', or start one process without "
                     "TF_CONFIG")


@gin.configurable(module="replicator", denylist=["environment"])
def per_worker(path: str = gin.REQUIRED, environment: Mapping[str, str] = os.environ) -> str:
  """A path with the number of this worker, from 0, in place of `{worker}`.

  It is for data of which each worker has a copy in a folder of its own:

      ImageFolder.path = @per_worker()
      per_worker.path = '/disks/{worker}/images'

  Raises:
    UsageError: the path has no `{worker}`.
  """
  if "{worker}" not in path:
    raise UsageError(f"per_worker.path = '{path}': has no {{worker}} to replace; write the path "
                     "without @per_worker()")
  return path.replace("{worker}", str(number_of(environment) or 0))


def make(strategy: str, manager: str = "auto", servers: int = 1) -> tuple[dict[str, Any], str]:
  """TF_CONFIG of this process for 'multi_worker_mirrored' or 'parameter_server', and its source.

  If a manager describes the processes in other variables, `servers` of them are parameter servers,
  and TF_CONFIG is set, for TensorFlow. Returns `{"cluster": {job: [address]}, "task": {"type": str,
  "index": int}}` and what that is from.

  Raises:
    UsageError: there is no such manager, it describes no processes or too few, or TF_CONFIG is not
      usable (see `read`).
  """
  if manager not in MANAGERS:
    raise UsageError(f"Replicator.cluster = '{manager}': no such manager."
                     f"{nearest(manager, MANAGERS)} Write one of: {', '.join(MANAGERS)}")
  source = "TF_CONFIG"
  if processes := found(os.environ, manager):
    source = processes.source
    count = len(processes.addresses)
    if strategy == "parameter_server" and not 1 <= servers <= count - 2:
      raise UsageError(f"Replicator.servers = {servers}: {source} has {count} processes, which "
                       "must be a chief, at least one parameter server, and at least one worker")
    config = processes.tf_config(servers if strategy == "parameter_server" else None)
    os.environ["TF_CONFIG"] = json.dumps(config)
  elif starter := next((each for each, variable in STARTERS.items() if variable in os.environ
                        and manager in ("auto", each)), None):
    source = f"TF_CONFIG, in a process of {starter.capitalize()}"
  elif manager in (*READERS, *STARTERS):
    raise UsageError(f"Replicator.cluster = '{manager}': its variables are not in the environment; "
                     f"write 'auto', or start the processes with {manager}")
  config = read(strategy)
  _reach_directly(config)
  return config, source


def _reach_directly(config: dict[str, Any]) -> None:
  """Keeps gRPC from looking for the processes behind a proxy that the user has set."""
  hosts = {address.rpartition(":")[0] for addresses in config["cluster"].values()
           for address in addresses}
  # gRPC reads these two names, in lower case.
  direct = os.environ.get("no_grpc_proxy") or os.environ.get("no_proxy") or ""  # noqa: SIM112
  known = [host for host in direct.split(",") if host]
  os.environ["no_grpc_proxy"] = ",".join([*known, *sorted(hosts - {*known})])  # noqa: SIM112


def read(strategy: str) -> dict[str, Any]:
  """Reads and checks TF_CONFIG.

  Raises:
    UsageError: TF_CONFIG is missing, is not JSON, lacks a job, names an address twice, or gives
      this process a task that takes no part in the training.
  """
  launch = "replicator launch --workers=2 " + (
      "--ps=1 " if strategy == "parameter_server" else "") + "-- COMMAND"
  text = os.environ.get("TF_CONFIG")
  if not text:
    raise UsageError(f"Replicator.strategy = '{strategy}': the environment has no TF_CONFIG; "
                     f"start all processes with: {launch}; or with srun in a job of Slurm")
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
  counts = Counter(address for addresses in cluster.values() for address in addresses)
  if twice := [address for address, count in counts.items() if count > 1]:
    raise UsageError(f"TF_CONFIG: {twice[0]} is the address of {counts[twice[0]]} processes; give "
                     "each process one of its own")
  return config


def _is_address(text: Any) -> bool:
  """Whether a value is a string "host:port"."""
  return (isinstance(text, str) and bool(re.fullmatch(r".+:\d{1,5}", text))
          and int(text.rpartition(":")[2]) < 65536)


def shown(config: Mapping[str, Any]) -> str:
  """Who is who: `chief n1:2222; worker n2:2222, n3:2222`."""
  return "; ".join(f"{kind} {', '.join(addresses)}"
                   for kind, addresses in config["cluster"].items())


def worker_number(cluster: Mapping[str, Sequence[str]], kind: str, index: int) -> int:
  """The number of a 'chief' or 'worker' task among those that train; any chief comes first."""
  return index + (len(cluster.get("chief", ())) if kind == "worker" else 0)
