"""Agents that run processes where Spark or Ray places them, and the launcher's side of each.

An agent connects to the launcher, reports its address, runs the command it gets, and sends the
output and the exit status back over the same connection. Each command has its own connection.
"""

import contextlib
import functools
import hmac
import json
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from replicator.errors import RunFailed, UsageError
from replicator.processes import Child
from replicator.tools.launch.placement import AS_TEXT, Slot, free_ports, say
from replicator.tools.launch.remote import shell_line

FAREWELL_SECONDS = 2.0
"""How long an agent may take to end by itself once the launcher no longer needs it."""

_SECONDS = 10.0  # How long either side waits for a connection, and for the greeting.
_END = "\0ended with "  # Comes before the exit status, at the end of the output.
# If the other side is gone, a connection ends after idle + count * interval seconds of silence.
_ALIVE = {"TCP_KEEPIDLE": 3, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 2}
_LOST_STATUS = 255  # The same as for ssh.
_PORTS = 8  # Ports that an agent offers; others on its machine may offer the same ones.

Agent = Callable[[int, Mapping[str, str]], None]
"""Called in a place, with its number and environment variables. It can be fully pickled."""


def make_agent(address: tuple[str, int], secret: str) -> Agent:
  """Makes an agent for the launcher at `address`; it runs in a folder with this one's path."""
  folder = os.getcwd()

  def run(number: int, environment: Mapping[str, str]) -> None:
    import os
    import sys
    os.chdir(folder)
    if folder not in sys.path:
      sys.path.insert(0, folder)  # This package may be only there.
    from replicator.tools.launch import agents
    agents.serve(address, secret, number, environment)

  return run


def serve(address: tuple[str, int], secret: str, number: int, environment: Mapping[str, str]
          ) -> None:
  """Runs a launcher's commands in sequence; raises an OSError if the launcher is unreachable."""
  connection = socket.create_connection(address, _SECONDS)
  with contextlib.suppress(OSError):
    while _runs_one(connection, secret, number, environment):
      connection = socket.create_connection(address, _SECONDS)


def _runs_one(connection: socket.socket, secret: str, number: int, environment: Mapping[str, str]
              ) -> bool:
  """Runs a command from the launcher; returns False if there was none."""
  with connection:
    connection.settimeout(None)
    _notice_its_end(connection)
    greeting = {"secret": secret, "number": number, "host": connection.getsockname()[0],
                "ports": free_ports(_PORTS)}
    connection.sendall(json.dumps(greeting).encode() + b"\n")
    line = _first_line(connection)
    if line:
      child = Child(["/bin/sh", "-c", json.loads(line)], environment, stdin=connection,
                    stdout=connection)
      connection.sendall(f"{_END}{child.wait()}\n".encode())
    return bool(line)


def _first_line(connection: socket.socket, limit: int = -1) -> str:
  """Reads a line and nothing after it, since another reader may need the rest."""
  with connection.makefile("rb", buffering=0) as stream:
    return stream.readline(limit).decode()


def _hang_up(connection: socket.socket) -> None:
  """Closes a connection, and ends the calls on it in other threads."""
  with contextlib.suppress(OSError):
    connection.shutdown(socket.SHUT_RDWR)
  connection.close()


def _notice_its_end(connection: socket.socket) -> None:
  """Makes a connection end soon after the machine on the other side is gone."""
  connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
  for name, value in _ALIVE.items():
    if option := getattr(socket, name, None):
      connection.setsockopt(socket.IPPROTO_TCP, option, value)


# ---- The launcher -------------------------------------------------------------------------------


class Agents:
  """A `Placement` on agents.

  Args:
    host: this machine's name or address, as seen by the agents.
    where: the user's flag for the places, such as '--ray=auto'.
    start: starts a number of agents while the body runs; yields a function that returns why they
      cannot start, or "".
  """

  def __init__(self, host: str, where: str,
               start: Callable[[int, Agent], contextlib.AbstractContextManager[Callable[[], str]]]):
    self._host, self._where, self._start = host, where, start

  @contextlib.contextmanager
  def slots(self, count: int, is_stopped: Callable[[], bool], is_back: Callable[[], None]
            ) -> Iterator[list[Slot]]:
    """Implements `Placement.slots`.

    Raises:
      RunFailed: the agents cannot start.
      UsageError: this machine does not have that name or address.
    """
    try:
      door = _Door(self._host, count)
    except OSError as error:
      raise UsageError(f"{self._where}: cannot listen at {self._host}: {error.strerror}") from error
    with self._start(count, door.agent) as problem, door:
      notice = time.monotonic() + _SECONDS
      while len(door.waiting) < count and not is_stopped():
        if line := problem():
          raise RunFailed(f"{self._where}: {line}")
        if time.monotonic() > notice:
          notice += 60.0
          say(f"{self._where}: {len(door.waiting)} of {count} processes have a place; waiting")
        time.sleep(0.05)
      yield door.slots()

  def away(self) -> list[str]:
    """Implements `Placement.away`; agents are not elastic."""
    return []


class _Door:
  """Server to which agents connect; it is open while the body of its `with` runs."""

  def __init__(self, host: str, count: int):
    self._count = count
    self._listener = socket.create_server((host, 0), backlog=count + 8)
    self._secret = secrets.token_hex(16)
    self.agent = make_agent((host, self._listener.getsockname()[1]), self._secret)
    # By place, the latest agent's connection, host and free ports.
    self.waiting: dict[int, tuple[socket.socket, str, Sequence[int]]] = {}
    self._changes = threading.Condition()
    self._connections: list[socket.socket] = []
    self._is_closed = False

  def __enter__(self) -> "_Door":
    threading.Thread(target=self._listen, daemon=True).start()
    return self

  def __exit__(self, *_: object) -> None:
    with self._changes:
      self._is_closed = True
    for each in (self._listener, *self._connections):
      _hang_up(each)

  def slots(self) -> list[Slot]:
    """Returns a slot for each place, all with a waiting agent."""
    slots: dict[str, Slot] = {}
    for number, (_, host, ports) in sorted(self.waiting.items()):
      shown = f"[{host}]" if ":" in host else host
      free = next(address for port in ports if (address := f"{shown}:{port}") not in slots)
      slots[free] = Slot(free, functools.partial(self._start, number, host))
    return list(slots.values())

  def _start(self, number: int, host: str, command: Sequence[str], environment: Mapping[str, str]
             ) -> "AgentProcess":
    """Starts a command in a place; it counts as lost if the agent does not come back."""
    with self._changes:
      self._changes.wait_for(lambda: number in self.waiting, _SECONDS)
      arrived = self.waiting.pop(number, None)
    return AgentProcess(arrived[0] if arrived else socket.socket(), host, command, environment)

  def _listen(self) -> None:
    with contextlib.suppress(OSError):
      while True:
        connection, _ = self._listener.accept()
        with self._changes:
          self._connections.append(connection)
          if self._is_closed:
            _hang_up(connection)
        threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

  def _greet(self, connection: socket.socket) -> None:
    """Admits an agent; closes any other connection."""
    try:
      connection.settimeout(_SECONDS)
      greeting = json.loads(_first_line(connection, 10_000))
      if not hmac.compare_digest(greeting["secret"], self._secret):
        raise ValueError
      connection.settimeout(None)
      _notice_its_end(connection)
      with self._changes:
        self.waiting[range(self._count)[greeting["number"]]] = (
            connection, greeting["host"], greeting["ports"])
        self._changes.notify_all()
    except (OSError, ValueError, LookupError, TypeError):
      connection.close()


class AgentProcess:
  """A command that an agent runs on the other side of a connection; see `Process`."""

  def __init__(self, connection: socket.socket, host: str, command: Sequence[str],
               environment: Mapping[str, str]):
    self.lost = ""
    self._connection, self._host = connection, host
    self._status: int | None = None
    self._ended = threading.Event()
    self._send(json.dumps(shell_line(command, environment)))

  def lines(self) -> Iterator[str]:
    """Yields its output, until the end of the command or the connection."""
    with contextlib.suppress(OSError), self._connection.makefile(**AS_TEXT) as lines:
      for line in lines:
        text, is_last, status = line.partition(_END)
        if text:
          yield text
        if is_last:
          self._status = int(status)
          break
    if self._status is None:
      self.lost = f"the connection to {self._host} ended"
    self._ended.set()

  def wait(self) -> int:
    """Waits for the end while `lines` is read; returns the status, or 128 + n after signal n."""
    self._ended.wait()
    return _LOST_STATUS if self._status is None else self._status

  def send_signal(self, number: int) -> None:
    """Sends a signal to the command and all processes that it started."""
    if not self._ended.is_set():
      self._send(f"{number:d}")

  def end(self, deadline: float) -> None:
    """Waits for the end until `deadline`, on the monotonic clock; then kills the command."""
    if not self._ended.wait(max(0.0, deadline - time.monotonic())):
      self.send_signal(signal.SIGKILL)
      self._status = 128 + signal.SIGKILL  # It was killed, not lost.
    _hang_up(self._connection)  # Ends `lines`.

  def _send(self, line: str) -> None:
    with contextlib.suppress(OSError):
      self._connection.sendall(f"{line}\n".encode())
