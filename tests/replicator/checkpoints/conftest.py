"""The state of a process that a training must put back itself."""

import signal

import pytest


@pytest.fixture
def restored(restored):
  """Also checks that every training put the handlers of signals back."""
  handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
  yield
  left = {n: signal.signal(n, handler) for n, handler in handlers.items()}
  assert left == handlers
