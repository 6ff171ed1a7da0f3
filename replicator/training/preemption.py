"""An orderly end when somebody asks for one."""

import signal

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
