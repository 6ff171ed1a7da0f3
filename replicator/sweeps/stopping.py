"""Ctrl-C and SIGTERM ask the trials of a sweep to save and end; a second one ends them at once."""

import signal
import time
from types import FrameType
from typing import Any

from replicator.sweeps.sweep import Sweep

_SAME_SECONDS = 0.5  # A signal may come by two ways, to this process and to its group.


class Stopping:
  """While it is entered, the first SIGINT or SIGTERM stops the sweep."""

  def __init__(self, sweep: Sweep):
    self._sweep = sweep
    self._first = 0.0

  def _receive(self, number: int, frame: FrameType | None) -> None:
    if self._first and time.monotonic() > self._first + _SAME_SECONDS:
      self._sweep.stop(at_once=True)
    if not self._first:
      self._first = time.monotonic()
      self._sweep.stop()

  def __enter__(self) -> "Stopping":
    self._previous: dict[int, Any] = {
      number: signal.signal(number, self._receive) for number in (signal.SIGINT, signal.SIGTERM)}
    return self

  def __exit__(self, *exception: object) -> None:
    for number, handler in self._previous.items():
      signal.signal(number, handler)
