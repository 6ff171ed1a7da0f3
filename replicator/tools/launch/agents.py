"""Processes in places that Spark or Ray choose: agents there, and what the launcher knows of them.

An agent connects to the launcher, says where it is, runs the command that it gets, and sends the
output and the exit status back over the same connection. Each command has a connection of its own.
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
"""How long an agent may take to end by itself once the launcher needs it no more."""

_SECONDS = 10.0  # How long either end waits for a connection, and for the greeting on it.
_END = "\0ended with "  # Comes before the exit status, at the end of the output.
# A connection whose other end is gone ends within so many seconds of silence: idle + count * each.
_ALIVE = {"TCP_KEEPIDLE": 3, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 2}
_LOST_STATUS = 255  # As that of ssh.
_PORTS = 8  # An agent offers so many, as others on its machine may offer the same ones.

Agent = Callable[[int, Mapping[str, str]], None]
"""Called in a place, with its number and variables for its commands. It can be pickled whole."""


def make_agent(address: tuple[str, int], secret: str) -> Agent:
  """Makes the agent of the launcher at `address`, for a folder of the same name as this one's."""
  folder = os.getcwd()

  def run(number: int, environment: Mapping[str, str]) -> None:
    import os
    import sys
    os.chdir(folder)
    if folder not in sys.path:
      sys.path.insert(0, folder)  # This package may be in no other folder.
    from replicator.tools.launch import agents
    agents.serve(address, secret, number, environment)

  return run


def serve(address: tuple[str, int], secret: str, number: int, environment: Mapping[str, str]
          ) -> None:
  """Runs a launcher's commands one after the other; raises an OSError if it cannot be reached."""
  connection = socket.create_connection(address, _SECONDS)
  with contextlib.suppress(OSError):
    while _runs_one(connection, secret, number, environment):
      connection = socket.create_connection(address, _SECONDS)


def _runs_one(connection: socket.socket, secret: str, number: int, environment: Mapping[str, str]
              ) -> bool:
  """Whether a command came, which has run by now."""
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
  """Reads no byte after the line, which may be for another reader."""
  with connection.makefile("rb", buffering=0) as stream:
    return stream.readline(limit).decode()


def _hang_up(connection: socket.socket) -> None:
  """Closes a connection for the calls of other threads, too."""
  with contextlib.suppress(OSError):
    connection.shutdown(socket.SHUT_RDWR)
  connection.close()


def _notice_its_end(connection: socket.socket) -> None:
  """Makes a connection end soon after the machine at the other end has gone."""
  connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
  for name, value in _ALIVE.items():
    if option := getattr(socket, name, None):
      connection.setsockopt(socket.IPPROTO_TCP, option, value)


# ---- The launcher -------------------------------------------------------------------------------


class Agents:
  """A `Placement` where agents are.

  Args:
    host: this machine's name or address, as the agents reach it.
    where: what the user wrote for the places, such as '--ray=auto'.
    start: starts so many agents, in the body; its value returns why they cannot start, or "".
  """

  def __init__(self, host: str, where: str,
               start: Callable[[int, Agent], contextlib.AbstractContextManager[Callable[[], str]]]):
    self._host, self._where, self._start = host, where, start

  @contextlib.contextmanager
  def slots(self, count: int, is_stopped: Callable[[], bool], is_back: Callable[[], None]
            ) -> Iterator[list[Slot]]:
    """See `Placement`.

    Raises:
      RunFailed: the agents cannot start.
      UsageError: this machine has no such name or address.
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
          say(f"{self._where}: {len(door.waiting)} of {count} processes have a place; waits")
        time.sleep(0.05)
      yield door.slots()

  def away(self) -> list[str]:
    """See `Placement`; this one is not elastic."""
    return []


class _Door:
  """Where agents connect; the body of its `with` is the time in which they may."""

  def __init__(self, host: str, count: int):
    self._count = count
    self._listener = socket.create_server((host, 0), backlog=count + 8)
    self._secret = secrets.token_hex(16)
    self.agent = make_agent((host, self._listener.getsockname()[1]), self._secret)
    # By place, the connection of the agent that came last, its host and its free ports.
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
    """The places, in each of which an agent waits."""
    slots: dict[str, Slot] = {}
    for number, (_, host, ports) in sorted(self.waiting.items()):
      shown = f"[{host}]" if ":" in host else host
      free = next(address for port in ports if (address := f"{shown}:{port}") not in slots)
      slots[free] = Slot(free, functools.partial(self._start, number, host))
    return list(slots.values())

  def _start(self, number: int, host: str, command: Sequence[str], environment: Mapping[str, str]
             ) -> "AgentProcess":
    """Starts a command in a place; it is lost if the agent does not come back."""
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
    """Lets an agent in, and closes any other connection."""
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
  """A command of an agent at the other end of a connection, see `Process`."""

  def __init__(self, connection: socket.socket, host: str, command: Sequence[str],
               environment: Mapping[str, str]):
    self.lost = ""
    self._connection, self._host = connection, host
    self._status: int | None = None
    self._ended = threading.Event()
    self._send(json.dumps(shell_line(command, environment)))

  def lines(self) -> Iterator[str]:
    """Its output, until the end of the command or the connection."""
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
    """Waits for the end, while `lines` is read; returns the status, or 128 + n after signal n."""
    self._ended.wait()
    return _LOST_STATUS if self._status is None else self._status

  def send_signal(self, number: int) -> None:
    """Sends a signal to the command and to all processes that it started."""
    if not self._ended.is_set():
      self._send(str(number))

  def end(self, deadline: float) -> None:
    """Waits for the end until `deadline`, on the monotonic clock; then kills the command."""
    if not self._ended.wait(max(0.0, deadline - time.monotonic())):
      self.send_signal(signal.SIGKILL)
      self._status = 128 + signal.SIGKILL  # It is killed, not lost.
    _hang_up(self._connection)  # Ends `lines`.

  def _send(self, line: str) -> None:
    with contextlib.suppress(OSError):
      self._connection.sendall(f"{line}\n".encode())
