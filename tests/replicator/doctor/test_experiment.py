"""New processes of the doctor, and the first error that they print."""

import subprocess
import sys
import types

import pytest

from replicator.doctor import experiment
from replicator.doctor.verdict import CheckResult, listed
from tests.programs.refusals import refusal


def recorded_by(monkeypatch, workers=1, status=0, out="", err=""):
  """The recording of processes that end so, and the command that started them."""
  started = []

  def run(command, **options):
    *words, record = command
    started.extend(words)
    for is_chief in (True, False):
      experiment.hand_over(record.removeprefix("--record="),
                           types.SimpleNamespace(is_chief=is_chief))
    return subprocess.CompletedProcess(command, status, out, err)

  monkeypatch.setattr(experiment.subprocess, "run", run)
  return experiment.recorded_by(["--steps=3"], workers), started


DOCTOR = [sys.executable, "-m", "replicator.doctor", "--steps=3"]


@pytest.mark.parametrize("workers, launcher", [
    (1, []), (2, [sys.executable, "-m", "replicator.launch", "--workers=2", "--"])])
def test_several_processes_are_launched_and_the_chief_hands_over(workers, launcher, monkeypatch):
  found, started = recorded_by(monkeypatch, workers, out="error: of a process that ended well")
  assert found.is_chief and started == [*launcher, *DOCTOR]


@pytest.mark.parametrize("out, err, message", [
    ("step 1\n[worker 0] error: of one\n[worker 1] error: of two\n", "error: last\n", "of one"),
    ("step 1\nstep 2\n", "gone\n", "step 1"), ("", "error: of Python\n", "of Python"),
    ("", "", "no output")])
def test_a_process_that_fails_is_its_first_error(out, err, message, monkeypatch):
  assert refusal(recorded_by, monkeypatch, 1, 1, out, err) == message


def test_the_first_three_of_many_are_listed():
  assert (listed("abc"), listed("abcdef")) == ("a, b, c", "a, b, c and 3 more")


def test_the_notes_of_a_row_are_wrapped_below_it():
  text = str(CheckResult("2 replicas", "agrees", "all", ("word " * 30, "--a-flag-" + "x" * 120)))
  first, *notes = text.splitlines()
  assert first.split() == ["2", "replicas", "agrees", "all"]
  assert [len(note) - len(note.lstrip()) for note in notes] == [4, 6, 4]
  assert all(len(note) <= 100 for note in notes[:2]) and notes[2].endswith("-" + "x" * 120)
