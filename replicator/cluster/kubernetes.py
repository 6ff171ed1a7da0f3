"""The processes of a Job on Kubernetes, one in each Pod.

An indexed Job tells each Pod its index, and nothing about the others: `REPLICATOR_HOSTS` in the
manifest names all Pods, as `replicator.launch --kubernetes` writes it. The runtimes of
Kubeflow's Trainer for JAX and PyTorch set variables of their own.
"""

import re
from collections.abc import Mapping

from replicator.cluster.processes import Processes
from replicator.errors import UsageError

PORT = 2222
"""The port of each process, as a Pod has an address of its own."""

INDEX, HOSTS = "JOB_COMPLETION_INDEX", "REPLICATOR_HOSTS"
# The number of Pods, the index of this one, and the host of the first, as Trainer's runtimes say.
_TRAINER = (("JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_COORDINATOR_ADDRESS"),
            ("PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR"))


def read(environment: Mapping[str, str]) -> Processes | None:
  """The processes of the Job; None where no variable names the hosts.

  Raises:
    UsageError: a variable is missing or cannot be read.
  """
  if HOSTS in environment:
    names = [name.strip() for name in environment[HOSTS].split(",")]
    return _processes(environment, INDEX, HOSTS, names)
  for size, index, first in _TRAINER:
    if size in environment and first in environment:
      return _processes(environment, index, first, _numbered(environment, size, first))
  return None


def _processes(environment: Mapping[str, str], index: str, hosts: str, names: list[str]
               ) -> Processes:
  if not all(re.fullmatch(r"[\w.-]+(:\d{1,5})?", name) for name in names):
    raise UsageError(f"{hosts}={environment[hosts]!r}: must be names of hosts, such as "
                     "'train-0.train,train-1.train'")
  rank = environment.get(index, "")
  if not rank.isdecimal() or int(rank) >= len(names):
    raise UsageError(
        f"{index}={rank!r}: must be the number of this process among the {len(names)} of {hosts}, "
        "counted from 0; in a Job of Kubernetes, write completionMode: Indexed")
  return Processes([name if ":" in name else f"{name}:{PORT}" for name in names], int(rank),
                   f"{hosts} and {index}")


def _numbered(environment: Mapping[str, str], size: str, first: str) -> list[str]:
  """`('3', 'job-node-0-0.job:1234') -> [job-node-0-0.job, job-node-0-1.job, job-node-0-2.job]`."""
  name, number = environment[first].partition(":")[0], environment[size]
  host, dot, domain = name.partition(".")
  if not number.isdecimal() or not host.endswith("-0"):
    raise UsageError(f"{size}={number!r}, {first}={environment[first]!r}: must be a number of "
                     f"hosts, and the first of them, whose name ends in -0; or set {HOSTS}")
  return [f"{host[:-1]}{i}{dot}{domain}" for i in range(int(number))]
