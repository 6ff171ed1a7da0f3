"""A time limit for environments.

An environment that waits for a dead simulator would never return, and would block the run. It runs
in the main thread of its process, which another thread watches and interrupts.
"""

import os
import signal
import sys
import threading
import time
from typing import NoReturn

from replicator import processes

GRACE = 10.0
"""Seconds after which a process ends if its main thread does not react to an interrupt."""

_TICK = 1.0  # Maximum seconds between checks.


class TookTooLong(BaseException):
  """An environment took too long. An environment's own `except Exception` does not hide it."""


class Timeout:
  """A context that interrupts its body, in the main thread, after some seconds of running.

  It raises a `TookTooLong`; or, if the process was asked to stop, `processes.GivenUp`. Native code
  cannot be interrupted; then the process ends with an error message and exit status 1. There is no
  limit in other threads.

  Args:
    name: name of the environment.
    seconds: the limit; None for no limit.
  """

  def __init__(self, name: str, seconds: float | None):
    self.name, self.seconds = name, seconds

  def __enter__(self) -> None:
    if threading.current_thread() is threading.main_thread():
      _watch.begin(self)

  def __exit__(self, *error: object) -> None:
    _watch.limit = None


class _Watch:
  """The watching thread and the current limit; `begun` counts limits, to tell them apart."""

  def __init__(self) -> None:
    self.limit: Timeout | None = None
    self.begun = 0
    self._interrupts: tuple[int, BaseException] | None = None
    self._thread: threading.Thread | None = None

  def begin(self, limit: Timeout) -> None:
    if self._thread is None or not self._thread.is_alive():  # A forked process has no thread.
      signal.signal(signal.SIGURG, self._interrupt)
      self._thread = threading.Thread(target=self._run, daemon=True)
      self._thread.start()
    self.begun += 1
    self.limit = limit

  def _run(self) -> None:
    begun, looks, interrupted = -1, 0.0, 0.0
    while True:
      limit = self.limit
      tick = _TICK if limit is None or not limit.seconds else min(_TICK, limit.seconds / 8)
      time.sleep(tick)
      if limit is None or self.limit is not limit or self.begun != begun:
        begun, looks, interrupted = self.begun, 0.0, 0.0
        continue
      looks += tick  # Not a clock, because the process may have been suspended.
      error = _reason(limit, looks)
      if error is None:
        continue
      if interrupted > GRACE:
        _end(limit)
      interrupted += tick
      self._interrupts = begun, error
      signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGURG)

  def _interrupt(self, number: int, frame: object) -> None:
    interrupts, self._interrupts = self._interrupts, None
    if interrupts and self.limit is not None and interrupts[0] == self.begun:
      raise interrupts[1]


def _reason(limit: Timeout, seconds: float) -> BaseException | None:
  if limit.seconds and seconds >= limit.seconds:
    return TookTooLong(f"it took more than Environments.step_timeout = {limit.seconds:g} seconds")
  if processes.gives_up() and seconds >= GRACE:
    return processes.GivenUp(f"{limit.name} does not answer")
  return None


def _end(limit: Timeout) -> NoReturn:
  print(f"error: {limit.name}: an environment does not return, and cannot be interrupted; the "
        "process ends without saving", file=sys.stderr, flush=True)
  os._exit(1)


_watch = _Watch()
