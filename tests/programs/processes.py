"""Starts other processes, and waits for what they do."""

import contextlib
import functools
import os
import pathlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable

from replicator.tools.launch import free_ports
from tests.programs import forks

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SECONDS = 900.0
"""A test that waits longer hangs. No test that passes waits nearly as long."""


def python(*words: object, status: int = 0, cwd: pathlib.Path = ROOT, **environment: str
           ) -> subprocess.CompletedProcess:
  """Runs Python as a user does, until it ends with this status."""
  return _ended(functools.partial(subprocess.run, capture_output=True, text=True, check=False),
                [sys.executable, *map(str, words)], status, cwd, environment)


def forked(*words: object, status: int = 0, cwd: pathlib.Path = ROOT, **environment: str
           ) -> subprocess.CompletedProcess:
  """Runs what `python` runs, in a process that need not import TensorFlow, see `forks`."""
  return _ended(forks.run, [str(word) for word in words], status, cwd, environment)


def _ended(run: Callable[..., subprocess.CompletedProcess], words: list[str], status: int,
           cwd: pathlib.Path, environment: dict[str, str]) -> subprocess.CompletedProcess:
  # The import of TensorFlow has set the log level of this process.
  inherited = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
  done = run(words, cwd=cwd, timeout=SECONDS,
             env={**inherited, "PYTHONPATH": str(ROOT), **environment})
  assert done.returncode == status, done.stdout + done.stderr
  return done


def launched(cluster: Iterable[str], module: str, *words: str, bindings: Iterable[str] = (),
             **options) -> subprocess.CompletedProcess:
  """Runs a module in the processes of a cluster, such as `["--workers=2"]`; else as `forked`."""
  return forked("-m", "replicator", "launch", *cluster, "--", sys.executable, "-m", module, *words,
                *(f"--gin_param={binding}" for binding in bindings), **options)


def wait_until(condition: Callable[[], object]) -> None:
  deadline = time.monotonic() + SECONDS
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.02)  # A condition may read a long file.


def free_addresses(count: int, host: str = "127.0.0.1") -> list[str]:
  """Addresses of this machine where nobody listens; skips a test of IPv6 on machines without."""
  if host == "[::1]":
    try:
      socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
      pytest.skip(f"this machine has no IPv6: {error}")
  return [f"{host}:{port}" for port in free_ports(count)]


def wait_until_listens(port: int) -> None:
  def listens() -> bool:
    with socket.socket() as probe:
      return probe.connect_ex(("127.0.0.1", port)) == 0
  wait_until(listens)


def wait_until_gone(pid: int) -> None:
  status = pathlib.Path(f"/proc/{pid}/status")
  with contextlib.suppress(FileNotFoundError, ProcessLookupError):
    wait_until(lambda: "\nState:\tZ" in status.read_text())
