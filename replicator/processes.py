"""Child processes that end with their parent, and handling of signals that request a stop."""

import contextlib
import ctypes
import functools
import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import resource_tracker
from typing import Any

GRACE_SECONDS = 30.0
"""The time that processes get to exit on their own, because one may be saving.

Kubernetes and Slurm use the same value.
"""

GIVING_UP_SECONDS = 10.0
"""The time after a signal during which this process still waits for others."""

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def end_with_parent(number: int = signal.SIGKILL, exit_status: int = 1) -> Callable[[], None]:
  """Returns a function for a new process to call, so that Linux signals it when this one dies.

  It can be pickled, or passed as `preexec_fn`: it makes only system calls, so it is safe in a fork
  of a process with threads. On other systems, it does nothing. The new process exits with
  `exit_status` if this one is already dead.
  """
  return functools.partial(_end_with, os.getpid(), number, exit_status)


def _end_with(parent: int, number: int, exit_status: int) -> None:
  if _libc is not None:
    _libc.prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # The parent died before the call of prctl.
      os._exit(exit_status)


class Child:
  """A command in its own session, which ends with this process; see `end_with_parent`.

  Ctrl-C does not reach it: this process decides when it ends. Its stderr goes to its stdout,
  unbuffered if it is a Python program.

  Args:
    command: the words of the command.
    environment: variables to add to those of this process.
    end_signal: the signal it gets when this process dies.
    end_status: its exit status if this process dies before it starts.
    options: further arguments of `subprocess.Popen`.

  Attributes:
    process: the running process.

  Raises:
    OSError: the system cannot run the command.
  """

  def __init__(self, command: Sequence[str], environment: Mapping[str, str], *,
               end_signal: int = signal.SIGKILL, end_status: int = 1, **options: Any):
    with_parent = end_with_parent(end_signal, end_status)

    def before_the_command() -> None:  # Also makes only system calls.
      with_parent()
      signal.pthread_sigmask(signal.SIG_SETMASK, [])  # Workers of Ray block signals.
      for number in (signal.SIGINT, signal.SIGTERM):  # Workers of Spark ignore some.
        signal.signal(number, signal.SIG_DFL)

    self.process = subprocess.Popen(
        command, env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
        stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=before_the_command,
        **{"stdin": subprocess.DEVNULL, **options})

  def send_signal(self, number: int) -> None:
    """Sends a signal to the process and to all processes it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
      os.killpg(self.process.pid, number)

  def wait(self) -> int:
    """Waits for the process to end; returns its status, or 128 + n after signal n."""
    status = self.process.wait()
    return status if status >= 0 else 128 - status

  def end(self, deadline: float) -> None:
    """Waits until `deadline`, on the monotonic clock, for the process to end; then kills it."""
    try:
      self.process.wait(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
      self.send_signal(signal.SIGKILL)
      self.process.wait()


@contextlib.contextmanager
def spawning(*withheld: int) -> Iterator[None]:
  """Keeps processes that `multiprocessing` spawns in the body from running this program's file.

  They never get the `withheld` signals, which may be sent to all processes; this process ends them.
  """
  before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
  resource_tracker.ensure_running()  # It unblocks signals when it starts.
  signal.pthread_sigmask(signal.SIG_SETMASK, [*before, *withheld])  # Children inherit the mask.
  main, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
  try:
    yield
  finally:
    sys.modules["__main__"] = main
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


class GivenUp(BaseException):
  """The end of a wait for something outside of this process, after a request to stop."""


_given_up = threading.Event()


def gives_up() -> bool:
  """Returns whether a stop was requested so long ago that this process should no longer wait."""
  return _given_up.is_set()


@contextlib.contextmanager
def giving_up() -> Iterator[Callable[[], None]]:
  """Yields a function; `GIVING_UP_SECONDS` after its call, `gives_up` is true in the body."""
  timer = threading.Timer(GIVING_UP_SECONDS, _given_up.set)
  timer.daemon = True
  try:
    yield timer.start
  finally:
    timer.cancel()
    _given_up.clear()


@contextlib.contextmanager
def stop_signals(receive: Callable[[int], None]) -> Iterator[None]:
  """Makes SIGINT and SIGTERM call `receive` with their number in the body; main thread only."""
  previous = {number: signal.signal(number, lambda number, frame: receive(number))
              for number in (signal.SIGINT, signal.SIGTERM)}
  try:
    yield
  finally:
    for number, handler in previous.items():
      signal.signal(number, handler)


@contextlib.contextmanager
def signals_heard(hear: Callable[[int], None]) -> Iterator[None]:
  """Calls `hear` with the number of each SIGINT and SIGTERM in the body, in a separate thread.

  It is called at once, whereas a handler runs only after the main thread returns from C code.
  Both signals must have a handler. Main thread only.
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
