"""Children that end with their parent, and handlers for the signals that ask to stop."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from replicator.processes import end_with_parent, signals_heard, stop_signals

# Starts a child that sleeps, prints its number, and waits; `{options}` are those of the function.
PARENT = """
import signal, subprocess, sys
from replicator.processes import end_with_parent
child = subprocess.Popen([sys.executable, "-c", {child!r}], stdout=subprocess.PIPE, text=True,
                         preexec_fn=end_with_parent({options}))
print(child.pid, child.stdout.readline().strip(), flush=True)
sys.stdin.read()
"""
SLEEPS = "import time; print('begun', flush=True); time.sleep(600)"
SAVES = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path({path!r}).touch(), sys.exit(42)))
print('begun', flush=True)
time.sleep(600)
"""

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="prctl is a call of Linux")


def start_and_kill_the_parent(child: str, options: str) -> int:
  """Returns the number of the child, whose parent is dead."""
  parent = subprocess.Popen([sys.executable, "-c", PARENT.format(child=child, options=options)],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
  assert parent.stdout is not None and parent.stdin is not None
  pid, said = parent.stdout.readline().split()
  assert said == "begun"
  parent.kill()
  parent.wait()
  parent.stdout.close()
  parent.stdin.close()
  return int(pid)


def wait_until(condition) -> None:
  deadline = time.monotonic() + 60
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.01)


def is_gone(pid: int) -> bool:
  try:
    with open(f"/proc/{pid}/status") as status:
      return "\nState:\tZ" in status.read()
  except (FileNotFoundError, ProcessLookupError):
    return True


@linux_only
def test_a_child_is_killed_when_its_parent_dies():
  pid = start_and_kill_the_parent(SLEEPS, "")
  wait_until(lambda: is_gone(pid))


@linux_only
def test_a_child_may_save_when_its_parent_dies(tmp_path):
  saved = tmp_path / "saved"
  start_and_kill_the_parent(SAVES.format(path=str(saved)), "signal.SIGTERM")
  wait_until(saved.exists)


@linux_only
def test_a_child_whose_parent_is_dead_already_ends_with_its_status(monkeypatch):
  monkeypatch.setattr(os, "getppid", lambda: -1)
  child = subprocess.Popen([sys.executable, "-c", SLEEPS],
                           preexec_fn=end_with_parent(exit_status=42))
  assert child.wait(timeout=60) == 42


@linux_only
def test_the_child_calls_what_it_is_given(tmp_path):
  path = str(tmp_path)
  here = end_with_parent(also=lambda: os.chdir(path))
  code = "import os; print(os.getcwd())"
  done = subprocess.run([sys.executable, "-c", code], preexec_fn=here, capture_output=True,
                        text=True, check=True)
  assert os.path.samefile(done.stdout.strip(), path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_signal_is_received_inside_and_the_old_handler_returns(number):
  received: list[int] = []
  before = signal.getsignal(number)
  with stop_signals(received.append):
    signal.raise_signal(number)
    signal.raise_signal(number)
  assert received == [number, number]
  assert signal.getsignal(number) is before


def test_stop_signals_and_no_others_are_heard_before_their_handlers_run():
  heard: list[int] = []
  noticed = threading.Event()

  def hear(number: int) -> None:
    heard.append(number)
    noticed.set()

  other = signal.signal(signal.SIGUSR1, lambda *_: None)
  ends = os.pipe()
  os.set_blocking(ends[1], False)
  before = signal.set_wakeup_fd(ends[1], warn_on_full_buffer=False)
  try:
    with stop_signals(lambda number: None), signals_heard(hear):
      for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGTERM):
        noticed.clear()
        os.kill(os.getpid(), number)
        assert number == signal.SIGUSR1 or noticed.wait(60)
  finally:
    signal.signal(signal.SIGUSR1, other)
    put_back = signal.set_wakeup_fd(before)
    for end in ends:
      os.close(end)
  assert heard == [signal.SIGINT, signal.SIGTERM]
  assert put_back == ends[1]


def test_the_old_handlers_return_after_an_error():
  before = signal.getsignal(signal.SIGTERM)
  with pytest.raises(ValueError), stop_signals(print):
    raise ValueError
  assert signal.getsignal(signal.SIGTERM) is before
