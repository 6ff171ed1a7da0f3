"""Where the processes of a cluster run, and the supervisor's view of each."""

import contextlib
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from replicator.processes import Child


class Process(Protocol):
  """A running command, on this or another machine."""

  lost: str  # Why its exit status is unknown; "" if it is known.

  def lines(self) -> Iterator[str]:
    """Yields its output until it ends; call it once."""

  def wait(self) -> int:
    """Waits for its end while `lines` is read; returns its status, or 128 + n after signal n."""

  def send_signal(self, number: int) -> None:
    """Sends a signal to it and all processes that it started."""

  def end(self, deadline: float) -> None:
    """Waits for its end until `deadline`, on the monotonic clock; then kills it."""


class PipedChild(Child):
  """A child of this process, see `Child`, with its output in a pipe."""

  lost = ""

  def __init__(self, command: Sequence[str], environment: Mapping[str, str], **options: Any):
    super().__init__(command, environment, stdout=subprocess.PIPE, **AS_TEXT, **options)

  def lines(self) -> Iterator[str]:
    """Yields its output until it ends; call it once."""
    assert self.process.stdout is not None
    with self.process.stdout as lines:
      yield from lines


AS_TEXT: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape"}
"""Options that decode output to text, where '\\r' also ends a line."""


class Slot(NamedTuple):
  """A place for one process."""

  address: str  # The "host:port" of the process.
  start: Callable[[Sequence[str], Mapping[str, str]], Process]  # Takes a command and its variables.


class Placement(Protocol):
  """A source of slots. An elastic one may find a different number each time."""

  def slots(self, count: int, is_stopped: Callable[[], bool], is_back: Callable[[], None]
            ) -> AbstractContextManager[list[Slot]]:
    """Yields `count` slots, for processes that end before the body does.

    It may wait for slots, but not after `is_stopped()`; then no process starts. An elastic one
    yields the available slots, and calls `is_back` in another thread once there could be more.
    """

  def away(self) -> list[str]:
    """Returns the machines of the last slots that an elastic run has to do without."""


def free_ports(count: int) -> list[int]:
  """Returns `count` free ports of this machine."""
  # Linux uses ports from 32768 up for outgoing connections. One of those could take a higher port
  # in the seconds that a process needs to import TensorFlow and listen.
  with contextlib.ExitStack() as held:
    ports: list[int] = []
    for port in random.SystemRandom().sample(range(12000, 32768), k=20000):
      if len(ports) == count:
        break
      candidate = held.enter_context(socket.socket())
      with contextlib.suppress(OSError):
        candidate.bind(("127.0.0.1", port))
        ports.append(port)
  return ports


def say(line: str) -> None:
  """Prints a message from the launcher itself."""
  print(f"launch: {line}", file=sys.stderr, flush=True)
