"""An agent, which runs the commands of the launcher in a place of Spark or Ray.

It connects to the launcher, says where it is, runs the command that it gets, and sends the output
and the exit status back over the same connection. Each command has a connection of its own.
"""

import contextlib
import json
import os
import socket
from collections.abc import Callable, Mapping

from replicator.launch.placement import free_ports
from replicator.processes import Child

SECONDS = 10.0
"""How long either end waits for a connection, and for the greeting on it."""

FAREWELL_SECONDS = 2.0
"""How long an agent may take to end by itself once the launcher needs it no more."""

END = "\0ended with "
"""Comes before the exit status, at the end of the output."""

# A connection whose other end is gone ends within so many seconds of silence: idle + count * each.
_ALIVE = {"TCP_KEEPIDLE": 3, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 2}
_PORTS = 8  # An agent offers so many, as others on its machine may offer the same ones.

Agent = Callable[[int, Mapping[str, str]], None]
"""Called in a place, with its number and variables for its commands. It can be pickled whole."""


def make(address: tuple[str, int], secret: str) -> Agent:
  """Makes the agent of the launcher at `address`, for a folder of the same name as this one's."""
  folder = os.getcwd()

  def run(number: int, environment: Mapping[str, str]) -> None:
    import os
    import sys
    os.chdir(folder)
    if folder not in sys.path:
      sys.path.insert(0, folder)  # This package may be in no other folder.
    from replicator.launch import agent
    agent.serve(address, secret, number, environment)

  return run


def serve(address: tuple[str, int], secret: str, number: int, environment: Mapping[str, str]
          ) -> None:
  """Runs the commands of a launcher, one after the other, until it needs no more.

  Raises:
    OSError: the launcher cannot be reached.
  """
  connection = socket.create_connection(address, SECONDS)
  with contextlib.suppress(OSError):
    while _runs_one(connection, secret, number, environment):
      connection = socket.create_connection(address, SECONDS)


def _runs_one(connection: socket.socket, secret: str, number: int, environment: Mapping[str, str]
              ) -> bool:
  """Whether a command came, which has run by now."""
  with connection:
    connection.settimeout(None)
    notice_its_end(connection)
    greeting = {"secret": secret, "number": number, "host": connection.getsockname()[0],
                "ports": free_ports(_PORTS)}
    connection.sendall(json.dumps(greeting).encode() + b"\n")
    line = first_line(connection)
    if line:
      child = Child(["/bin/sh", "-c", json.loads(line)], environment, stdin=connection,
                    stdout=connection)
      connection.sendall(f"{END}{child.wait()}\n".encode())
    return bool(line)


def first_line(connection: socket.socket, limit: int = -1) -> str:
  """Reads no byte after the line, which may be for another reader."""
  with connection.makefile("rb", buffering=0) as stream:
    return stream.readline(limit).decode()


def hang_up(connection: socket.socket) -> None:
  """Closes a connection for the calls of other threads, too."""
  with contextlib.suppress(OSError):
    connection.shutdown(socket.SHUT_RDWR)
  connection.close()


def notice_its_end(connection: socket.socket) -> None:
  """Makes a connection end soon after the machine at the other end has gone."""
  connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
  for name, value in _ALIVE.items():
    if option := getattr(socket, name, None):
      connection.setsockopt(socket.IPPROTO_TCP, option, value)
