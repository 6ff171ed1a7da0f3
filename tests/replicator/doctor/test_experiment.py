"""New processes of the doctor, and the first error that they print."""

import fcntl
import sys
import time
import types

from replicator.console.formatting import listed
from replicator.doctor import experiment
from replicator.doctor.verdict import CheckResult
from replicator.errors import UsageError
from replicator.processes import Child

import pytest


def recorded_by(monkeypatch, workers=1, program="pass"):
  """The recording of processes that run a program, and the command that started them."""
  started = []

  def child(command, environment, **options):
    *words, record = command
    started.extend(words)
    for is_chief in (True, False):
      experiment.hand_over(record.removeprefix("--record="),
                           types.SimpleNamespace(is_chief=is_chief))
    return Child([sys.executable, "-c", program], environment, **options)

  monkeypatch.setattr(experiment, "Child", child)
  return experiment.recorded_by(["--steps=3"], workers), started


DOCTOR = [sys.executable, "-m", "replicator", "doctor", "--steps=3"]


@pytest.mark.parametrize("workers, launcher", [
    (1, []), (2, [sys.executable, "-m", "replicator", "launch", "--workers=2", "--"])])
def test_several_processes_are_launched_and_the_chief_hands_over(workers, launcher, monkeypatch):
  found, started = recorded_by(monkeypatch, workers, "print('error: of one that ended well')")
  assert found.is_chief and started == [*launcher, *DOCTOR]


@pytest.mark.parametrize("program, message", [
    ("print('no error: here'); print('[worker 0] error: of one'); exit('error: of two')", "of one"),
    ("exit('error: of Python')", "of Python"),
    ("print('an error: of a log'); print('step 2'); exit(3)",
     "the process ended with status 3; its last line was 'step 2'"),
    ("import os; os.abort()", "the process was ended by signal 6, and printed nothing")])
def test_a_process_that_fails_is_its_first_error_or_its_end(program, message, monkeypatch):
  with pytest.raises(UsageError) as failed:
    recorded_by(monkeypatch, program=program)
  assert str(failed.value) == message


def test_a_process_that_does_not_end_is_ended(monkeypatch):
  monkeypatch.setattr(experiment, "LIMIT", 3.0)
  with pytest.raises(UsageError) as failed:
    recorded_by(monkeypatch, program="import time; print('step 1'); time.sleep(100)")
  assert str(failed.value) == (
      "replicator doctor --steps=3 did not end within 0.05 minutes; its last line was "
      "'step 1'; if it only needs more time, use fewer --steps or a smaller "
      "train.global_batch_size")


def test_what_a_process_leaves_behind_is_ended(tmp_path, monkeypatch):
  lock = tmp_path / "lock"
  recorded_by(monkeypatch, program=f"""
import fcntl, subprocess
file = open({str(lock)!r}, "w")
fcntl.flock(file, fcntl.LOCK_EX)
subprocess.Popen(["sleep", "60"], pass_fds=[file.fileno()])
""")
  begun = time.monotonic()
  with lock.open() as file:
    fcntl.flock(file, fcntl.LOCK_EX)  # Waits for the process that holds it.
  assert time.monotonic() - begun < 30


def test_the_first_three_of_many_are_listed():
  assert (listed("abc"), listed("abcdef")) == ("a, b, c", "a, b, c and 3 more")


def test_the_notes_of_a_row_are_wrapped_below_it():
  text = str(CheckResult("2 replicas", "agrees", "all", ("word " * 30, "--a-flag-" + "x" * 120)))
  first, *notes = text.splitlines()
  assert first.split() == ["2", "replicas", "agrees", "all"]
  assert [len(note) - len(note.lstrip()) for note in notes] == [4, 6, 4]
  assert all(len(note) <= 100 for note in notes[:2]) and notes[2].endswith("-" + "x" * 120)
