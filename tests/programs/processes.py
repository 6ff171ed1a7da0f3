"""Starts other processes, and waits for what they do."""

import contextlib
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterable

ROOT = pathlib.Path(__file__).parents[2]
SECONDS = 900.0
"""A test that waits longer hangs. No test that passes waits nearly as long."""


def python(*words: object, status: int = 0, cwd: pathlib.Path = ROOT, **environment: str
           ) -> subprocess.CompletedProcess:
  """Runs Python as a user does, until it ends with this status."""
  # The import of TensorFlow has set the log level of this process.
  inherited = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
  done = subprocess.run(
      [sys.executable, *map(str, words)], cwd=cwd, capture_output=True, text=True, check=False,
      timeout=SECONDS, env={**inherited, "PYTHONPATH": str(ROOT), **environment})
  assert done.returncode == status, done.stdout + done.stderr
  return done


def launched(cluster: Iterable[str], module: str, *words: str, bindings: Iterable[str] = (),
             **options) -> subprocess.CompletedProcess:
  """Runs a module in the processes of a cluster, such as `["--workers=2"]`; else as `python`."""
  return python("-m", "replicator.launch", *cluster, "--", sys.executable, "-m", module, *words,
                *(f"--gin_param={binding}" for binding in bindings), **options)


def wait_until(condition: Callable[[], object]) -> None:
  deadline = time.monotonic() + SECONDS
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.005)


def wait_until_gone(pid: int) -> None:
  status = pathlib.Path(f"/proc/{pid}/status")
  with contextlib.suppress(FileNotFoundError, ProcessLookupError):
    wait_until(lambda: "\nState:\tZ" in status.read_text())
