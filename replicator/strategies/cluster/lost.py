"""Which process of a run is missing, as the others say when they end."""

import contextlib
import re
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from replicator.errors import RunFailed

Cluster = Mapping[str, Sequence[str]]  # The addresses "host:port" of each job.

NEWS = "the others lost "
"""The first words of what a process tells the others before it ends; a process's name follows."""

TWICE = "with a different incarnation"
"""TensorFlow's words for a process whose number another one had before."""

_SHUT_OUT = "Agent must be in CONNECTED state"  # TensorFlow's words; it does not say why.

_TASK = re.compile(r"/job:(\w+)/(?:replica:0/)?task:(\d+)")


def failure(message: str, cluster: Cluster) -> tuple[str, str] | None:
  """The last words of a process that lost another one, and its words to the others; or None.

  `message` is TensorFlow's.
  """
  if _SHUT_OUT in message:
    return ("another process has ended, or two have the same number, as their logs say; start each "
            "process of the run once, and all again", "")
  who = lost_process(message, cluster)
  if who is None:
    return None
  if TWICE in message:
    return (f"{who} was started twice; start each process of the run once, and all again, to "
            "resume from the last checkpoint", f"{NEWS}{who} {TWICE}")
  return (f"{who} does not answer; start all processes again to resume from the last checkpoint",
          f"{NEWS}{who}")


def lost_process(message: str, cluster: Cluster) -> str | None:
  """`worker 1 (n2:2222)`, if TensorFlow's `message` says that it does not answer; else None.

  A process learns of it by a broken connection, or from the first process, to which all send
  heartbeats.
  """
  _, aborted, reason = message.partition("Collective ops is aborted by: ")
  if not aborted and TWICE not in message:
    return None
  reason = reason or message
  if told := re.search(re.escape(NEWS) + r"(\w+ \d+ \(.+?\))", reason):
    return told[1]
  if found := _TASK.search(reason):
    return _shown(cluster, found[1], int(found[2]))
  if "RPC: /tensorflow.CoordinationService/" in reason:
    return first(cluster)
  return None


def first(cluster: Cluster) -> str:
  """The process that the others register with, such as `worker 0 (n1:2222)`."""
  return names(cluster)[0]


def names(cluster: Cluster) -> list[str]:
  """All processes that train, by their numbers."""
  return [_shown(cluster, *task) for task in _tasks(cluster)]


def await_others(config: Mapping[str, Any], seconds: float) -> None:
  """Waits, in the first process, until all others of a TF_CONFIG listen at their ports.

  TensorFlow's wait for the last one never ends, and nothing can interrupt it. The others wait for
  the first process within a limit of time that TensorFlow keeps.

  Raises:
    RunFailed: some do not listen within so many seconds.
  """
  cluster, task = config["cluster"], config["task"]
  own, *silent = _tasks(cluster)
  if (task["type"], task["index"]) != own:
    return
  deadline = time.monotonic() + seconds
  while silent := [(kind, index) for kind, index in silent if not listens(cluster[kind][index])]:
    if time.monotonic() > deadline:
      raise late(", ".join(_shown(cluster, *each) for each in silent), seconds)
    time.sleep(0.2)


def late(who: str, seconds: float) -> RunFailed:
  """The error that some processes did not start in time."""
  return RunFailed(f"{who} did not start within {seconds:g} seconds; start all processes of the "
                   "run together, or set Replicator.join_timeout to more seconds")


def listens(address: str) -> bool:
  """Whether TensorFlow listens at "host:port", and no other program.

  gRPC begins each connection with a frame of HTTP/2, whose fourth byte is 4: its settings.
  """
  host, _, port = address.rpartition(":")
  with (contextlib.suppress(OSError),
        socket.create_connection((host.strip("[]"), int(port)), 1) as connection):
    return connection.recv(4)[3:] == b"\4"
  return False


def _tasks(cluster: Cluster) -> list[tuple[str, int]]:
  return [(kind, index) for kind in ("chief", "worker")
          for index in range(len(cluster.get(kind, ())))]


def _shown(cluster: Cluster, kind: str, index: int) -> str:
  return f"{kind} {index} ({cluster[kind][index]})"
