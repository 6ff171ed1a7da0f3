"""Children that end with their parent, and handlers for the signals that ask to stop."""

import os
import signal
import subprocess
import sys
import threading

from replicator.processes import Child, signals_heard, stop_signals
from tests.programs.processes import wait_until_gone

import pytest

# Starts a child, prints its number, and waits.
PARENT = """
import subprocess, sys
from replicator.processes import Child
code = "import time; print('begun', flush=True); time.sleep(600)"
child = Child([sys.executable, "-c", code], {}, stdout=subprocess.PIPE)
print(child.process.pid, child.process.stdout.readline().decode().strip(), flush=True)
sys.stdin.read()
"""
SPAWNS = """
import multiprocessing, os, signal, sys
from concurrent.futures import ProcessPoolExecutor
from replicator.processes import end_with_parent, spawning
executor = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), end_with_parent())
with spawning(signal.SIGTERM):
  pid = executor.submit(os.getpid)
assert executor.submit(signal.pthread_sigmask, signal.SIG_BLOCK, []).result() == {signal.SIGTERM}
assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])
print(pid.result(), "begun", flush=True)
sys.stdin.read()
"""

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="prctl is a call of Linux")


def start_and_kill(*program: str) -> int:
  """Starts a program that prints the number of its child, and kills it; returns the number."""
  parent = subprocess.Popen([sys.executable, *program], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True)
  assert parent.stdout is not None and parent.stdin is not None
  pid, said = parent.stdout.readline().split()
  assert said == "begun"
  parent.kill()
  parent.wait()
  parent.stdout.close()
  parent.stdin.close()
  return int(pid)


@linux_only
def test_a_child_is_killed_when_its_parent_dies():
  wait_until_gone(start_and_kill("-c", PARENT))


@linux_only
def test_a_child_whose_parent_is_dead_already_ends_with_its_status(monkeypatch):
  monkeypatch.setattr(os, "getppid", lambda: -1)
  child = Child(["sleep", "600"], {}, end_status=42)
  assert child.process.wait(timeout=60) == 42


@linux_only
def test_what_is_spawned_withholds_signals_and_ends_with_its_parent(tmp_path):
  program = tmp_path / "program.py"
  program.write_text(SPAWNS)  # Spawned processes would run a file again.
  wait_until_gone(start_and_kill(str(program)))


def test_a_child_gets_its_environment_and_no_blocked_signals():
  code = ("import os, signal; print(os.environ['MINE'], 'HOME' in os.environ, "
          "signal.pthread_sigmask(signal.SIG_BLOCK, []))")
  before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
  try:
    child = Child([sys.executable, "-c", code], {"MINE": "set"}, stdout=subprocess.PIPE, text=True)
  finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
  assert child.process.communicate(timeout=60)[0].strip() == "set True set()"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_signal_is_received_inside_and_the_old_handler_returns(number):
  received: list[int] = []
  before = signal.getsignal(number)
  with pytest.raises(ZeroDivisionError), stop_signals(received.append):
    signal.raise_signal(number)
    signal.raise_signal(number)
    raise ZeroDivisionError
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
