"""An orderly end when somebody asks for one."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

from replicator.processes import stop_signals


class StopSignal:
  """Turns the first SIGTERM or SIGINT into a request to stop; a second SIGINT interrupts."""

  def __init__(self):
    self.received = False  # Whether this process was asked to stop.
    self.agreed = False    # Whether all workers know of it, so that all stop at the same step.

  def _receive(self, number: int) -> None:
    if self.received and number == signal.SIGINT:
      raise KeyboardInterrupt
    self.received = True

  def __enter__(self):
    self._handlers = stop_signals(self._receive)
    self._handlers.__enter__()
    return self

  def __exit__(self, *exception):
    self._handlers.__exit__(*exception)


@contextlib.contextmanager
def sigterm_held() -> Iterator[Callable[[], None]]:
  """In the body, a SIGTERM waits until the function that this yields is called, or is dropped.

  So it finds a run that can save, or one whose outcome is known.
  """
  held: list[int] = []

  def release() -> None:
    if held:
      os.kill(os.getpid(), signal.SIGTERM)

  previous = signal.signal(signal.SIGTERM, lambda number, frame: held.append(number))
  try:
    yield release
  finally:
    signal.signal(signal.SIGTERM, previous)
