"""How to start processes from the process that trains."""

import contextlib
import signal
import sys
import types
from collections.abc import Iterator
from multiprocessing import resource_tracker


@contextlib.contextmanager
def main_module_hidden() -> Iterator[None]:
  """Processes started inside do not run the experiment's own file, which imports TensorFlow."""
  blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
  # The tracker unblocks signals when it starts, so it must be running before they are blocked.
  resource_tracker.ensure_running()
  signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
  main = sys.modules["__main__"]
  sys.modules["__main__"] = types.ModuleType("__main__")
  try:
    yield
  finally:
    sys.modules["__main__"] = main


@contextlib.contextmanager
def interrupts_withheld() -> Iterator[None]:
  """Processes started inside ignore Ctrl-C, which reaches all processes. The trainer ends them."""
  before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # Children inherit the mask.
  try:
    yield
  finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
