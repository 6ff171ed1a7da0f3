"""Child processes that end with their parent, and what answers the signals that ask to stop."""

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def end_with_parent(number: int = signal.SIGKILL, exit_status: int = 1,
                    also: Callable[[], None] | None = None) -> Callable[[], None] | None:
  """A `preexec_fn` that makes Linux send a signal to the new process when this one dies.

  It is None on other systems. It makes only system calls, so that it is safe in a fork of a process
  with threads; `also`, which is called in the new process too, must do the same. `exit_status` is
  the status of the new process if this one dies before `preexec_fn` is done.
  """
  if _libc is None:
    return None
  parent = os.getpid()

  def in_child() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, number)
    if also is not None:
      also()
    if os.getppid() != parent:  # The parent died before the call of prctl.
      os._exit(exit_status)
  return in_child


@contextlib.contextmanager
def stop_signals(receive: Callable[[int], None]) -> Iterator[None]:
  """In the body, SIGINT and SIGTERM call `receive` with their number; for the main thread."""
  def handle(number: int, frame: FrameType | None) -> None:
    receive(number)

  previous: dict[int, Any] = {
    number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
  try:
    yield
  finally:
    for number, handler in previous.items():
      signal.signal(number, handler)


@contextlib.contextmanager
def signals_heard(hear: Callable[[int], None]) -> Iterator[None]:
  """In the body, `hear` is called with the number of each SIGINT and SIGTERM, in another thread.

  It is called at once, while a handler waits for the main thread's call into C to return. Both
  signals must have a handler; for the main thread.
  """
  listening, calling = os.pipe()

  def listen() -> None:
    while number := os.read(listening, 1)[0]:
      if number in (signal.SIGINT, signal.SIGTERM):
        hear(number)

  os.set_blocking(calling, False)
  previous = signal.set_wakeup_fd(calling, warn_on_full_buffer=False)
  thread = threading.Thread(target=listen, daemon=True)
  thread.start()
  try:
    yield
  finally:
    signal.set_wakeup_fd(previous)
    os.write(calling, b"\0")
    thread.join()
    os.close(listening)
    os.close(calling)
