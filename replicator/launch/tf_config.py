"""The environment of the processes of a cluster on this machine: TF_CONFIG, on free ports."""

import contextlib
import json
import os
import random
import socket
from collections.abc import Iterator


def tf_configs(workers: int, ps: int = 0) -> list[dict]:
  """The TF_CONFIG of every process, the chief's first, on free ports of 127.0.0.1."""
  sizes = {"chief": 1, "worker": workers, "ps": ps} if ps else {"worker": workers}
  ports = _free_ports(sum(sizes.values()))
  cluster = {kind: [f"127.0.0.1:{next(ports)}" for _ in range(n)] for kind, n in sizes.items()}
  return [{"cluster": cluster, "task": {"type": kind, "index": index}}
          for kind, addresses in cluster.items() for index in range(len(addresses))]


def environment(tf_config: dict) -> dict[str, str]:
  """All variables of a process: those of this one, TF_CONFIG, and what keeps proxies away."""
  # gRPC would look for 127.0.0.1 behind a proxy that the user has set, and wait without end. It
  # reads these two names, in lower case.
  direct = os.environ.get("no_grpc_proxy") or os.environ.get("no_proxy")  # noqa: SIM112
  return {**os.environ,
          "TF_CONFIG": json.dumps(tf_config),
          "PYTHONUNBUFFERED": "1",
          "no_grpc_proxy": f"{direct},127.0.0.1" if direct else "127.0.0.1"}


def _free_ports(count: int) -> Iterator[int]:
  # Linux numbers outgoing connections from 32768 on: one of those could take a higher port in the
  # seconds that a process needs to import TensorFlow and listen.
  with contextlib.ExitStack() as held:
    ports: list[int] = []
    for port in random.SystemRandom().sample(range(12000, 32768), k=20000):
      if len(ports) == count:
        break
      candidate = held.enter_context(socket.socket())
      with contextlib.suppress(OSError):
        candidate.bind(("127.0.0.1", port))
        ports.append(port)
  return iter(ports)
