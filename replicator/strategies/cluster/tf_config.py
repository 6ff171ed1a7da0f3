"""TF_CONFIG: the processes of a run, and the task of the current one.

`replicator launch` and some cluster managers set this environment variable in every process. For
other managers, it is made from their own variables.
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
"""The managers with their own environment variables."""

STARTERS = {"ray": "RAY_RAYLET_PID", "spark": "SPARK_BUFFER_SIZE"}
"""Programs that start processes with a TF_CONFIG, and a variable that identifies each program."""

MANAGERS = ("auto", "tf_config", *READERS, *STARTERS)
"""Valid values of `Replicator.cluster`."""

_MPI_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")  # Of Open MPI, and of MPICH and Intel MPI.

WORKERS = ("chief", "worker")
"""The jobs that compute, the first process first; parameter servers only store."""

TRAINING_JOBS = {"multi_worker_mirrored": WORKERS, "parameter_server": (*WORKERS, "ps")}
"""The jobs that take part in training under a strategy, in the same order."""


def found(environment: Mapping[str, str], manager: str = "auto") -> Processes | None:
  """Returns the processes that a manager describes; None without one, or if TF_CONFIG is used.

  Raises a UsageError as the readers do.
  """
  if manager not in ("auto", *READERS) or (manager == "auto" and environment.get("TF_CONFIG")):
    return None
  readers = READERS.values() if manager == "auto" else [READERS[manager]]
  return next((processes for read in readers if (processes := read(environment))), None)


def number_of(environment: Mapping[str, str]) -> int | None:
  """Returns this process's number among the training processes, from unchecked variables.

  Returns 0 if the variables are missing or invalid (reported elsewhere), and None for a process
  that does not train.
  """
  with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError, UsageError):
    if processes := found(environment):
      return processes.rank
    config = json.loads(environment.get("TF_CONFIG") or "{}")
    task = config["task"]
    if task["type"] not in WORKERS:
      return None
    return worker_number(config["cluster"], task["type"], task["index"])
  return 0


def is_chief(environment: Mapping[str, str]) -> bool:
  """Returns whether this process is the chief of its run, from unchecked variables."""
  return number_of(environment) == 0


def are_several(environment: Mapping[str, str]) -> bool:
  """Returns whether the run has several processes, from unchecked variables."""
  with contextlib.suppress(UsageError):
    if processes := found(environment):
      return len(processes.addresses) > 1
  return bool(environment.get("TF_CONFIG"))


def check_used(strategy: str, environment: Mapping[str, str], manager: str = "auto") -> None:
  """Raises a UsageError if there are several processes and `strategy` supports only one."""
  if strategy in TRAINING_JOBS:
    return
  source, count = "TF_CONFIG", _workers(environment)
  if count < 2:
    source, count = _started_together(environment, manager)
  if count > 1:
    raise UsageError(f"Replicator.strategy = '{strategy}': trains in one process, but {source} has "
                     f"{count}, each of which would train separately; use 'multi_worker_mirrored' "
                     "or 'parameter_server', or start one process" + (
                         " without TF_CONFIG" if source == "TF_CONFIG" else
                         "; for separate runs, set Replicator.cluster = 'tf_config'"))


def _workers(environment: Mapping[str, str]) -> int:
  """Returns the number of training processes from an unchecked TF_CONFIG; or 0."""
  with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):  # It is invalid.
    cluster = json.loads(environment["TF_CONFIG"])["cluster"]
    return sum(len(cluster.get(job, ())) for job in WORKERS)
  return 0


def _started_together(environment: Mapping[str, str], manager: str) -> tuple[str, int]:
  """Returns the source and the number of processes that a manager started as one step or job.

  `mpirun` counts as one, although it does not describe its processes. The number is 0 without a
  manager, and in a process of Ray or Spark, which may run inside a step.
  """
  if manager in ("auto", *READERS) and not {*STARTERS.values()} & environment.keys():
    for read in READERS.values() if manager == "auto" else [READERS[manager]]:
      with contextlib.suppress(UsageError):  # Its variables are invalid.
        if processes := read(environment):
          return processes.source, len(processes.addresses)
    sizes = [environment.get(name, "") for name in _MPI_SIZES if manager == "auto"]
    return "mpirun", max((int(size) for size in sizes if size.isdecimal()), default=0)
  return "", 0


@gin.configurable(module="replicator", denylist=["environment"])
def per_worker(path: str = gin.REQUIRED, environment: Mapping[str, str] = os.environ) -> str:
  """Replaces `{worker}` in a path with the number of this worker, starting at 0.

  Use it when each worker has its own copy of the data:

      ImageFolder.path = @per_worker()
      per_worker.path = '/disks/{worker}/images'

  Raises:
    UsageError: the path does not contain `{worker}`.
  """
  if "{worker}" not in path:
    raise UsageError(f"per_worker.path = '{path}': has no {{worker}} to replace; write the path "
                     "without @per_worker()")
  return path.replace("{worker}", str(number_of(environment) or 0))


def make(strategy: str, manager: str = "auto", servers: int = 1) -> tuple[dict[str, Any], str]:
  """Returns TF_CONFIG for 'multi_worker_mirrored' or 'parameter_server', and its source.

  If a manager describes the processes in its own variables, sets TF_CONFIG for TensorFlow, with
  `servers` parameter servers under 'parameter_server'. Returns `{"cluster": {job: [address]},
  "task": {"type": str, "index": int}}` and where that came from.

  Raises:
    UsageError: the manager is unknown, describes no processes or too few, or TF_CONFIG is invalid
      (see `read`).
  """
  if manager not in MANAGERS:
    raise UsageError(f"Replicator.cluster = '{manager}': no such manager."
                     f"{nearest(manager, MANAGERS)} Write one of: {', '.join(MANAGERS)}")
  source = "TF_CONFIG"
  of_manager, count = _started_together(os.environ, manager)
  if manager == "auto" and _workers(os.environ) == 1 and count > 1:
    raise UsageError(f"TF_CONFIG has 1 process, but {of_manager} has {count}, each of which would "
                     "train separately; unset TF_CONFIG, or for separate runs set "
                     "Replicator.cluster = 'tf_config'")
  if processes := found(os.environ, manager):
    source = processes.source
    count = len(processes.addresses)
    if strategy == "parameter_server" and not 1 <= servers <= count - 2:
      raise UsageError(f"Replicator.servers = {servers}: {source} has {count} processes; there "
                       "must be a chief, at least one parameter server, and at least one worker")
    config = processes.tf_config(servers if strategy == "parameter_server" else None)
    os.environ["TF_CONFIG"] = json.dumps(config)
  elif starter := next((each for each, variable in STARTERS.items() if variable in os.environ
                        and manager in ("auto", each)), None):
    source = f"TF_CONFIG, in a {starter.capitalize()} process"
  elif manager in (*READERS, *STARTERS):
    raise UsageError(f"Replicator.cluster = '{manager}': its environment variables are not set; "
                     f"use 'auto', or start the processes with {manager}")
  config = read(strategy)
  _reach_directly(config)
  return config, source


def _reach_directly(config: dict[str, Any]) -> None:
  """Keeps gRPC from connecting to the processes through the user's proxy."""
  hosts = {address.rpartition(":")[0].strip("[]") for addresses in config["cluster"].values()
           for address in addresses}
  # gRPC reads only these two lowercase names.
  direct = os.environ.get("no_grpc_proxy") or os.environ.get("no_proxy") or ""  # noqa: SIM112
  known = [host for host in direct.split(",") if host]
  os.environ["no_grpc_proxy"] = ",".join([*known, *sorted(hosts - {*known})])  # noqa: SIM112


def read(strategy: str) -> dict[str, Any]:
  """Reads and checks TF_CONFIG.

  Raises:
    UsageError: TF_CONFIG is missing, is not JSON, lacks a job, has two chiefs, repeats an address,
      or gives this process a task that is not part of training.
  """
  launch = "replicator launch --workers=2 " + (
      "--ps=1 " if strategy == "parameter_server" else "") + "-- COMMAND"
  text = os.environ.get("TF_CONFIG")
  if not text:
    raise UsageError(f"Replicator.strategy = '{strategy}': TF_CONFIG is not set; start all "
                     f"processes with: {launch}; or with srun in a Slurm job")
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
  required = [job for job in TRAINING_JOBS[strategy]
              if job != "chief" or strategy == "parameter_server"]
  missing = [job for job in required if job not in cluster]
  if missing:
    raise UsageError(f"TF_CONFIG: '{strategy}' needs {', '.join(missing)} in the cluster, which "
                     f"has: {', '.join(cluster) or 'nothing'}")
  trains = [job for job in TRAINING_JOBS[strategy] if job in cluster]
  if kind not in trains:  # TensorFlow allows an evaluator outside the training cluster.
    raise UsageError(f"TF_CONFIG: the task type '{kind}' is not part of '{strategy}' training; "
                     f"start only processes of the cluster's types {', '.join(trains)} (the run "
                     "does its own evaluations)")
  if not isinstance(index, int) or not 0 <= index < len(cluster[kind]):
    raise UsageError(f"TF_CONFIG: task index {index!r} is out of range; the cluster has "
                     f"{len(cluster[kind])} of type '{kind}', counted from 0")
  if len(chiefs := cluster.get("chief", ())) > 1:
    raise UsageError(f"TF_CONFIG: the cluster has {len(chiefs)} chiefs; make all but one workers")
  counts = Counter(address for addresses in cluster.values() for address in addresses)
  if twice := [address for address, count in counts.items() if count > 1]:
    raise UsageError(f"TF_CONFIG: {twice[0]} is the address of {counts[twice[0]]} processes; give "
                     "each process its own")
  return config


def _is_address(text: Any) -> bool:
  """Returns whether a value is a "host:port" string."""
  return (isinstance(text, str) and bool(re.fullmatch(r".+:\d{1,5}", text))
          and int(text.rpartition(":")[2]) < 65536)


def shown(config: Mapping[str, Any]) -> str:
  """Formats the cluster: `chief n1:2222; worker n2:2222, n3:2222`."""
  return "; ".join(f"{kind} {', '.join(addresses)}"
                   for kind, addresses in config["cluster"].items())


def worker_number(cluster: Mapping[str, Sequence[str]], kind: str, index: int) -> int:
  """Returns the number of a 'chief' or 'worker' task among training tasks; a chief comes first."""
  return index + (len(cluster.get("chief", ())) if kind == "worker" else 0)
