"""Reads a run's processes from the environment variables of cluster managers.

`srun` starts a Slurm step. Here, its processes are numbered host by host. TensorFlow's own
resolver sorts host names as text, which puts `n10` before `n9`, fails on machines without GPUs,
and cannot read every host list (TensorFlow 2.21).

An indexed Kubernetes Job tells each Pod its own index, but nothing about the others.
`REPLICATOR_HOSTS` in the manifest lists all Pods; `replicator launch --kubernetes` writes it.
The JAX and PyTorch runtimes of Kubeflow Trainer set their own variables. SageMaker lists all hosts
and names the current one.
"""

import itertools
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from replicator.errors import UsageError

INDEX, HOSTS = "JOB_COMPLETION_INDEX", "REPLICATOR_HOSTS"
# Kubeflow Trainer's variables: the number of Pods, this Pod's index, and the first Pod's host.
_TRAINER = (("JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_COORDINATOR_ADDRESS"),
            ("PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR"))
_PORT_OF_PODS = 2222  # Each process can use the same port: each Pod or host has its own address.

# Slurm: these ports are below those of outgoing connections. Consecutive job numbers get ports this
# far apart, since such jobs may share a node. Each rank has its own, as nodes may share an address.
_FIRST_PORT, _PORTS, _PORTS_PER_JOB = 12000, 20000, 64


class Processes(NamedTuple):
  """The processes of a run, and the rank of the current one."""

  addresses: list[str]  # "host:port" of each process, by rank.
  rank: int
  source: str  # Where they were found, such as "Slurm step 7.0".

  def tf_config(self, servers: int | None) -> dict[str, Any]:
    """Returns TF_CONFIG for this process.

    If `servers` is None, all processes are workers. Otherwise, the first is the chief, the next
    `servers` are parameter servers, and the rest are workers.
    """
    if servers is None:
      kinds = ["worker"] * len(self.addresses)
    else:
      kinds = ["chief", *["ps"] * servers, *["worker"] * (len(self.addresses) - 1 - servers)]
    cluster: dict[str, list[str]] = {}
    for kind, address in zip(kinds, self.addresses, strict=False):
      cluster.setdefault(kind, []).append(address)
    kind = kinds[self.rank]
    return {"cluster": cluster, "task": {"type": kind, "index": kinds[:self.rank].count(kind)}}


# ---- Slurm --------------------------------------------------------------------------------------


def of_slurm(environment: Mapping[str, str]) -> Processes | None:
  """Returns the processes of the Slurm step; None outside a step, as in a batch script.

  The ports are computed from the job ID.

  Raises:
    UsageError: a variable is missing or malformed.
  """
  if "SLURM_STEP_NODELIST" not in environment:
    return None
  job, step = (_number(environment, name) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
  nodes = hosts(environment["SLURM_STEP_NODELIST"])
  counts = _tasks_per_node(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
  if len(nodes) != len(counts):
    raise UsageError(
        f"SLURM_STEP_NODELIST={environment['SLURM_STEP_NODELIST']} has {len(nodes)} hosts, but "
        f"SLURM_STEP_TASKS_PER_NODE={environment.get('SLURM_STEP_TASKS_PER_NODE', '')} has "
        f"{len(counts)}; start the processes with srun")
  places = [(node, local) for node, count in enumerate(counts) for local in range(count)]
  own = tuple(_number(environment, name) for name in ("SLURM_NODEID", "SLURM_LOCALID"))
  if own not in places:
    raise UsageError(
        f"SLURM_NODEID={own[0]}, SLURM_LOCALID={own[1]}: SLURM_STEP_TASKS_PER_NODE="
        f"{environment['SLURM_STEP_TASKS_PER_NODE']} has no such task; start the processes with "
        "srun")
  first = job * _PORTS_PER_JOB + step * len(places)
  # Slurm's own ranks may alternate between hosts, as with srun --distribution=cyclic.
  return Processes([f"{nodes[node]}:{_FIRST_PORT + (first + i) % _PORTS}" for i, (node, _) in
                    enumerate(places)], places.index(own), f"Slurm step {job}.{step}")


def hosts(text: str) -> list[str]:
  """Expands a Slurm host list, in its order: `a[08-10,12]b,c -> a08b a09b a10b a12b c`.

  Raises:
    UsageError: the list is malformed.
  """
  host = r"(?:[\w.-]|\[\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*\])+"
  if not re.fullmatch(rf"{host}(?:,{host})*", text):
    raise UsageError(f"SLURM_STEP_NODELIST={text!r} is not a list of hosts such as n[1-2,4]; "
                     "start the processes with srun")
  return ["".join(parts) for name in re.findall(host, text)
          for parts in itertools.product(*map(_choices, re.findall(r"\[.*?\]|[^\[\]]+", name)))]


def _choices(part: str) -> list[str]:
  """Expands one part of a host name: `a -> a`, `[08-10,12] -> 08 09 10 12`."""
  if not part.startswith("["):
    return [part]
  ranges = [range_.partition("-") for range_ in part[1:-1].split(",")]
  return [str(number).zfill(len(first)) for first, _, last in ranges
          for number in range(int(first), int(last or first) + 1)]


def _tasks_per_node(text: str) -> list[int]:
  """Expands `2(x3),1 -> 2 2 2 1`; skips what it cannot read."""
  found = re.findall(r"(\d+)(?:\(x(\d+)\))?(?:,|$)", text)
  return [int(count) for count, times in found for _ in range(int(times or 1))]


def _number(environment: Mapping[str, str], name: str) -> int:
  text = environment.get(name, "")
  if not text.isdecimal():
    raise UsageError(f"{name}={text!r}: is not a number, but this process is in a Slurm step; "
                     "start it with srun")
  return int(text)


# ---- Kubernetes ---------------------------------------------------------------------------------


def of_kubernetes(environment: Mapping[str, str]) -> Processes | None:
  """Returns the Job's processes; None if no variable lists its hosts. Raises as `of_slurm` does."""
  if HOSTS in environment:
    names = [name.strip() for name in environment[HOSTS].split(",")]
    return _pods(environment, INDEX, HOSTS, names)
  for size, index, first in _TRAINER:
    if size in environment and first in environment:
      return _pods(environment, index, first, _numbered(environment, size, first))
  return None


def _pods(environment: Mapping[str, str], index: str, hosts: str, names: list[str]) -> Processes:
  if not all(re.fullmatch(r"[\w.-]+(:\d{1,5})?", name) for name in names):
    raise UsageError(f"{hosts}={environment[hosts]!r}: must be host names, such as "
                     "'train-0.train,train-1.train'")
  rank = environment.get(index, "")
  if not rank.isdecimal() or int(rank) >= len(names):
    raise UsageError(
        f"{index}={rank!r}: must be the number of this process among the {len(names)} of {hosts}, "
        "counted from 0; in a Kubernetes Job, set completionMode: Indexed")
  addresses = [name if ":" in name else f"{name}:{_PORT_OF_PODS}" for name in names]
  return Processes(addresses, int(rank), f"{hosts} and {index}")


def _numbered(environment: Mapping[str, str], size: str, first: str) -> list[str]:
  """Lists the hosts: `('2', 'job-node-0-0.job:1234') -> [job-node-0-0.job, job-node-0-1.job]`."""
  name, number = environment[first].partition(":")[0], environment[size]
  host, dot, domain = name.partition(".")
  if not number.isdecimal() or not host.endswith("-0"):
    raise UsageError(f"{size}={number!r}, {first}={environment[first]!r}: must be the number of "
                     f"hosts, and the first host, whose name ends in -0; or set {HOSTS}")
  return [f"{host[:-1]}{i}{dot}{domain}" for i in range(int(number))]


# ---- SageMaker ----------------------------------------------------------------------------------


def of_sagemaker(environment: Mapping[str, str]) -> Processes | None:
  """Returns the training job's processes; None outside a job. Raises as `of_slurm` does."""
  if "SM_HOSTS" not in environment:
    return None
  own, names = environment.get("SM_CURRENT_HOST"), re.findall(r"[\w.-]+", environment["SM_HOSTS"])
  if own not in names:
    raise UsageError(f"SM_CURRENT_HOST={own!r}: must be one of SM_HOSTS={environment['SM_HOSTS']}")
  return Processes([f"{name}:{_PORT_OF_PODS}" for name in names], names.index(own),
                   "SM_HOSTS and SM_CURRENT_HOST")
