"""Ends a run cleanly on SIGTERM or Ctrl-C."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from replicator.console.command import INTERRUPTED_STATUS
from replicator.errors import Preempted
from replicator.processes import giving_up, signals_heard, stop_signals
from replicator.step import context

SAME_PRESS_SECONDS = 1.0  # A launcher forwards a Ctrl-C that its processes also get directly.
_INTERRUPTS = 100  # The number of interrupts of the main thread, ten per second, before giving up.


class StopSignal(contextlib.ExitStack):
  """A context in which the first SIGTERM or SIGINT requests a stop, and a later SIGINT interrupts.

  A separate thread calls `say` with a line about it, because the main thread cannot handle signals
  during a call into TensorFlow, which may take long. A process that is `alone`, so that no other
  process waits for its steps, gives up its waits after a request; see `processes.giving_up`.
  """

  def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic,
               alone: bool = False):
    super().__init__()
    self.received = False  # Whether this process was asked to stop.
    self.agreed = False    # Whether all workers agreed to stop at the same step.
    self._say = say
    self._clock = clock
    self._alone = alone
    self._give_up: Callable[[], None] = lambda: None
    self._asked: float | None = None  # The time of the first request.
    self._is_hurried = False
    self._thread = threading.get_ident()  # The main thread, where handlers run.

  def __enter__(self):
    if not hears_signals():
      return self
    if self._alone:
      self._give_up = self.enter_context(giving_up())
    self.enter_context(stop_signals(self._receive))
    self.enter_context(signals_heard(self.hear))
    return self

  def hear(self, number: int) -> None:
    """Handles a signal in any thread."""
    if self._asked is None:
      self._asked = self._clock()
      self._give_up()
      self._say("stopping after this step; Ctrl-C "
                f"{'again ' if number == signal.SIGINT else ''}to stop at once")
    elif number == signal.SIGINT and self._clock() - self._asked >= SAME_PRESS_SECONDS:
      self._hurry()

  def _hurry(self) -> None:
    """Interrupts the main thread; ends the program if the main thread does not respond."""
    self._is_hurried = True
    interrupts = 0
    while self._is_hurried:  # Repeat, because a signal just before a wait does not end it.
      signal.pthread_kill(self._thread, signal.SIGTERM)
      time.sleep(0.1)
      interrupts += 1
      if interrupts == _INTERRUPTS and context.run.is_program:
        self._say("error: the run does not respond; ending it at once without saving")
        os._exit(INTERRUPTED_STATUS)

  def _receive(self, number: int) -> None:
    self.received = True
    if self._is_hurried:
      self._is_hurried = False
      raise KeyboardInterrupt


@contextlib.contextmanager
def sigterm_held() -> Iterator[Callable[[], None]]:
  """Holds back a SIGTERM until the yielded function is called, or the body exits the program.

  SIGTERM is delivered when the run can save, or when a command such as the doctor ends it earlier.
  It is dropped when the run has ended, or has failed, since the user needs to see that error. If
  the run was stopped and saved, its program ignores SIGTERM to the end, so that a late one does not
  change the exit status. A process forked in the meantime handles it as before.
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


_outside: Any = None  # The SIGTERM handler outside of the current run.


def _in_child() -> None:
  """Lets SIGTERM end a forked process. Ctrl-C reaches it too, but is for its parent."""
  if _outside is not None:
    signal.signal(signal.SIGTERM, _outside)
    signal.set_wakeup_fd(-1)  # Otherwise the parent would react to signals of this process.


os.register_at_fork(after_in_child=_in_child)


def hears_signals() -> bool:
  """Returns whether this thread can handle signals; only the main thread can."""
  return threading.current_thread() is threading.main_thread()
