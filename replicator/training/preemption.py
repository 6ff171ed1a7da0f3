"""An orderly end when somebody asks for one."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from replicator.errors import Preempted
from replicator.processes import signals_heard, stop_signals
from replicator.step import context

SAME_PRESS_SECONDS = 1.0  # A launcher passes on a Ctrl-C that its processes get anyway.


class StopSignal(contextlib.ExitStack):
  """Turns the first SIGTERM or SIGINT into a request to stop; a later SIGINT interrupts.

  `say` is called with a line about it, in a thread of its own: the main thread learns of a signal
  only after a call into TensorFlow, which may take long.
  """

  def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic):
    super().__init__()
    self.received = False  # Whether this process was asked to stop.
    self.agreed = False    # Whether all workers know of it, so that all stop at the same step.
    self._say = say
    self._clock = clock
    self._asked: float | None = None  # When it was asked first.
    self._is_hurried = False
    self._thread = threading.get_ident()  # The main thread, where handlers run.

  def __enter__(self):
    if not hears_signals():
      return self
    self.enter_context(stop_signals(self._receive))
    self.enter_context(signals_heard(self.hear))
    return self

  def hear(self, number: int) -> None:
    """Answers a signal, in any thread."""
    if self._asked is None:
      self._asked = self._clock()
      self._say("stopping after this step; Ctrl-C "
                f"{'once more ' if number == signal.SIGINT else ''}to stop at once")
    elif number == signal.SIGINT and self._clock() - self._asked >= SAME_PRESS_SECONDS:
      self._is_hurried = True
      while self._is_hurried:  # A signal that comes just before a wait does not end it.
        signal.pthread_kill(self._thread, signal.SIGTERM)
        time.sleep(0.1)

  def _receive(self, number: int) -> None:
    self.received = True
    if self._is_hurried:
      self._is_hurried = False
      raise KeyboardInterrupt


@contextlib.contextmanager
def sigterm_held() -> Iterator[Callable[[], None]]:
  """Holds a SIGTERM back until the yielded function is called, or the body ends without an outcome.

  SIGTERM is delivered when the run can save, or when an observer stopped it before. It is dropped
  when the run has ended, or has failed: that error is what the user needs to see. A program whose
  run was stopped and saved drops it until its end, so that a late one does not change its status.
  A process that is forked meanwhile answers it as before.
  """
  global _outside
  if not hears_signals():
    yield lambda: None
    return
  held: list[int] = []

  def release() -> None:
    if held:
      held.clear()
      os.kill(os.getpid(), signal.SIGTERM)

  previous: Any = signal.signal(signal.SIGTERM, lambda number, frame: held.append(number))
  outside, _outside = _outside, previous if _outside is None else _outside
  try:
    yield release
    held.clear()
  except Exception as error:
    held.clear()
    if context.run.is_program and isinstance(error, Preempted):
      previous, outside = signal.SIG_IGN, _outside
    raise
  finally:
    signal.signal(signal.SIGTERM, previous)
    _outside = outside
    release()


_outside: Any = None  # The handler of SIGTERM outside of the training that is under way.


def _in_child() -> None:
  """Lets a forked process be ended by SIGTERM; Ctrl-C, which reaches it too, is for its parent."""
  if _outside is not None:
    signal.signal(signal.SIGTERM, _outside)
    signal.set_wakeup_fd(-1)  # Else this process would hear the signals of that one.


os.register_at_fork(after_in_child=_in_child)


def hears_signals() -> bool:
  """Whether this thread can answer signals: the main thread alone can."""
  return threading.current_thread() is threading.main_thread()
