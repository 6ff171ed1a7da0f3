"""The processes of a Job on Kubernetes, one in each Pod.

An indexed Job tells each Pod its index, and nothing about the others: `REPLICATOR_HOSTS` in the
manifest names all Pods, as `replicator.launch --kubernetes` writes it.
"""

import re
from collections.abc import Mapping

from replicator.cluster.processes import Processes
from replicator.errors import UsageError

PORT = 2222
"""The port of each process, as a Pod has an address of its own."""

INDEX, HOSTS = "JOB_COMPLETION_INDEX", "REPLICATOR_HOSTS"

def read(environment: Mapping[str, str]) -> Processes | None:
  """The processes of the Job; None where no variable names the hosts.

  Raises:
    UsageError: a variable is missing or cannot be read.
  """
  if HOSTS not in environment:
    return None
  names = [name.strip() for name in environment[HOSTS].split(",")]
  if not all(re.fullmatch(r"[\w.-]+(:\d{1,5})?", name) for name in names):
    raise UsageError(f"{HOSTS}={environment[HOSTS]!r}: must be names of hosts, such as "
                     "'train-0.train,train-1.train'")
  rank = environment.get(INDEX, "")
  if not rank.isdecimal() or int(rank) >= len(names):
    raise UsageError(
        f"{INDEX}={rank!r}: must be the number of this process among the {len(names)} of {HOSTS}, "
        "counted from 0; in a Job of Kubernetes, write completionMode: Indexed")
  return Processes([name if ":" in name else f"{name}:{PORT}" for name in names], int(rank),
                   f"{HOSTS} and {INDEX}")
