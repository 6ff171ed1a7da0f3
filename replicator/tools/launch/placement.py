"""Where the processes of a cluster run, and what the supervisor knows of each."""

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
  """A running command, here or on another machine."""

  lost: str  # Why nobody can know its exit status; "" if it is known.

  def lines(self) -> Iterator[str]:
    """Its output until its end; to be read once."""

  def wait(self) -> int:
    """Waits for its end, while `lines` is read; returns its status, or 128 + n after signal n."""

  def send_signal(self, number: int) -> None:
    """Sends a signal to it and to all processes that it started."""

  def end(self, deadline: float) -> None:
    """Waits for its end until `deadline`, on the monotonic clock; then kills it."""


class PipedChild(Child):
  """A child of this process, see `Child`, whose output comes through a pipe."""

  lost = ""

  def __init__(self, command: Sequence[str], environment: Mapping[str, str], **options: Any):
    super().__init__(command, environment, stdout=subprocess.PIPE, **AS_TEXT, **options)

  def lines(self) -> Iterator[str]:
    """Its output until its end; to be read once."""
    assert self.process.stdout is not None
    with self.process.stdout as lines:
      yield from lines


AS_TEXT: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape"}
"""How output becomes text, in which a '\\r' ends a line, too."""


class Slot(NamedTuple):
  """A place for one process."""

  address: str  # The "host:port" of the process.
  start: Callable[[Sequence[str], Mapping[str, str]], Process]  # Gets a command and its variables.


class Placement(Protocol):
  """Finds slots. An elastic one may find another number of them each time."""

  def slots(self, count: int, is_stopped: Callable[[], bool], is_back: Callable[[], None]
            ) -> AbstractContextManager[list[Slot]]:
    """So many slots, for processes that end before the body does.

    It may wait for them, but not once `is_stopped()`, when none starts. An elastic one finds what
    is there, and calls `is_back` in another thread once it could find more.
    """

  def away(self) -> list[str]:
    """The names of the last slots' machines without which an elastic run goes on."""


def free_ports(count: int) -> list[int]:
  """Ports that are free on this machine."""
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
  return ports


def say(line: str) -> None:
  """Shows a line of the launcher itself."""
  print(f"launch: {line}", file=sys.stderr, flush=True)
