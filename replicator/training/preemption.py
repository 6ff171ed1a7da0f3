"""An orderly end when somebody asks for one."""

import signal


class StopSignal:
  """Turns the first SIGTERM or SIGINT into a request to stop; a second SIGINT interrupts."""

  def __init__(self):
    self.received = False  # Whether this process was asked to stop.
    self.agreed = False    # Whether all workers know of it, so that all stop at the same step.

  def _receive(self, number, frame):
    if self.received and number == signal.SIGINT:
      raise KeyboardInterrupt
    self.received = True

  def __enter__(self):
    self._previous = {n: signal.signal(n, self._receive) for n in (signal.SIGTERM, signal.SIGINT)}
    return self

  def __exit__(self, *exception):
    for number, handler in self._previous.items():
      signal.signal(number, handler)
