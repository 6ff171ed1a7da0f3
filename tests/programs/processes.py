"""Waits for what other processes do."""

import contextlib
import pathlib
import time
from collections.abc import Callable

SECONDS = 300.0
"""A test that waits longer hangs. No test that passes waits nearly as long."""


def wait_until(condition: Callable[[], object]) -> None:
  deadline = time.monotonic() + SECONDS
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.02)


def wait_until_gone(pid: int) -> None:
  status = pathlib.Path(f"/proc/{pid}/status")
  with contextlib.suppress(FileNotFoundError, ProcessLookupError):
    wait_until(lambda: "\nState:\tZ" in status.read_text())
