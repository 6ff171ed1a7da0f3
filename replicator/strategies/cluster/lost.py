"""Finds which process of a run was lost, for the error messages of the others."""

import contextlib
import re
import socket
from collections.abc import Mapping, Sequence

from replicator.errors import RunFailed
from replicator.strategies.cluster.tf_config import WORKERS

Cluster = Mapping[str, Sequence[str]]  # The addresses "host:port" of each job.

NEWS = "the others lost "
"""Start of the message a process sends to the others before it exits; a process name follows."""

TWICE = "with a different incarnation"
"""TensorFlow's phrase for a process that registers with a number already in use."""

_SHUT_OUT = "Agent must be in CONNECTED state"  # TensorFlow's phrase; it gives no reason.

_TASK = re.compile(r"/job:(\w+)/(?:replica:0/)?task:(\d+)")


def failure(message: str, cluster: Cluster) -> tuple[str, str] | None:
  """Returns the error of a process that lost another, and its message to the others; or None.

  `message` is TensorFlow's error.
  """
  if _SHUT_OUT in message:
    return ("another process has ended, or two have the same number (see their logs); restart all "
            "processes of the run, each only once", "")
  who = lost_process(message, cluster)
  if who is None:
    return None
  if TWICE in message:
    return (f"{who} was started twice; restart all processes of the run, each only once, to resume "
            "from the last checkpoint", f"{NEWS}{who} {TWICE}")
  return (f"{who} is not responding; restart all processes to resume from the last checkpoint",
          f"{NEWS}{who}")


def lost_process(message: str, cluster: Cluster) -> str | None:
  """Returns the lost process in TensorFlow's `message`, such as `worker 1 (n2:2222)`, or None.

  A process notices a broken connection, or the first process, which receives all heartbeats,
  tells it.
  """
  _, aborted, reason = message.partition("Collective ops is aborted by: ")
  if not aborted and TWICE not in message:
    return None
  reason = reason or message
  if told := re.search(re.escape(NEWS) + r"(\w+ \d+ \(.+?\))", reason):
    return told[1]
  if found := _TASK.search(reason):
    return shown(cluster, found[1], int(found[2]))
  if "RPC: /tensorflow.CoordinationService/" in reason:
    return first(cluster)
  return None


def first(cluster: Cluster) -> str:
  """Returns the process that the others register with, such as `worker 0 (n1:2222)`."""
  return names(cluster)[0]


def names(cluster: Cluster) -> list[str]:
  """Returns the names of all training processes, in the order of their numbers."""
  return list(processes(cluster, WORKERS))


def processes(cluster: Cluster, jobs: Sequence[str]) -> dict[str, str]:
  """Returns the addresses of the processes of some jobs by their names, in their order."""
  return {shown(cluster, job, index): address for job in jobs
          for index, address in enumerate(cluster.get(job, ()))}


def late(who: str, seconds: float) -> RunFailed:
  """Returns the error for processes that did not start in time."""
  return RunFailed(f"{who} did not start within {seconds:g} seconds; start all processes of the "
                   "run together, or increase Replicator.join_timeout")


def port_taken(name: str) -> str:
  """Returns the error message for a process, such as `worker 0 (n1:2222)`, that cannot listen."""
  return (f"TF_CONFIG: {name} cannot listen: the port is in use, perhaps by a run that has not "
          "ended; end that run, or give this one different ports")


def listens(address: str) -> bool:
  """Returns whether TensorFlow, not some other program, listens at "host:port".

  gRPC opens each connection with an HTTP/2 SETTINGS frame, whose fourth byte is 4.
  """
  host, _, port = address.rpartition(":")
  with (contextlib.suppress(OSError),
        socket.create_connection((host.strip("[]"), int(port)), 1) as connection):
    return connection.recv(4)[3:] == b"\4"
  return False


def shown(cluster: Cluster, kind: str, index: int) -> str:
  """Returns the name of a process, such as `worker 0 (n1:2222)`."""
  return f"{kind} {index} ({cluster[kind][index]})"
