"""Children that end with their parent, and handlers for the signals that ask to stop."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from replicator.processes import Child, signals_heard, stop_signals

# Starts a child, prints its number, and waits; `{options}` are those of the class.
PARENT = """
import signal, subprocess, sys
from replicator.processes import Child
child = Child([sys.executable, "-c", {child!r}], {{}}, stdout=subprocess.PIPE, {options})
print(child.process.pid, child.process.stdout.readline().decode().strip(), flush=True)
sys.stdin.read()
"""
SLEEPS = "import time; print('begun', flush=True); time.sleep(600)"
SAVES = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path({path!r}).touch(), sys.exit(42)))
print('begun', flush=True)
time.sleep(600)
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


def wait_until(condition) -> None:
  deadline = time.monotonic() + 60
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.01)


def wait_until_gone(pid: int) -> None:
  def is_gone() -> bool:
    try:
      with open(f"/proc/{pid}/status") as status:
        return "\nState:\tZ" in status.read()
    except (FileNotFoundError, ProcessLookupError):
      return True
  wait_until(is_gone)


@linux_only
def test_a_child_is_killed_when_its_parent_dies():
  wait_until_gone(start_and_kill("-c", PARENT.format(child=SLEEPS, options="")))


@linux_only
def test_a_child_may_save_when_its_parent_dies(tmp_path):
  saved = tmp_path / "saved"
  start_and_kill("-c", PARENT.format(child=SAVES.format(path=str(saved)),
                                     options="end_signal=signal.SIGTERM"))
  wait_until(saved.exists)


@linux_only
def test_a_child_whose_parent_is_dead_already_ends_with_its_status(monkeypatch):
  monkeypatch.setattr(os, "getppid", lambda: -1)
  child = Child([sys.executable, "-c", SLEEPS], {}, end_status=42)
  assert child.process.wait(timeout=60) == 42


@linux_only
def test_what_is_spawned_withholds_signals_and_ends_with_its_parent(tmp_path):
  program = tmp_path / "program.py"
  program.write_text(SPAWNS)  # Spawned processes would run a file again.
  wait_until_gone(start_and_kill(str(program)))


def test_a_child_gets_its_environment_and_cores_and_no_blocked_signals():
  code = ("import os, signal; print(os.environ['MINE'], 'HOME' in os.environ, "
          "os.sched_getaffinity(0), signal.pthread_sigmask(signal.SIG_BLOCK, []))")
  core = min(os.sched_getaffinity(0))
  before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
  try:
    child = Child([sys.executable, "-c", code], {"MINE": "set"}, cores=[core],
                  stdout=subprocess.PIPE, text=True)
  finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
  assert child.process.communicate(timeout=60)[0].strip() == f"set True {{{core}}} set()"


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
