"""New processes of the doctor, and the first error that they print."""

import subprocess
import sys

import pytest

from replicator.doctor import experiment
from replicator.doctor.verdict import CheckResult, listed
from replicator.errors import UsageError


@pytest.fixture
def started(monkeypatch):
  """The commands that were started, which end with what stands in `status`, `out` and `err`."""
  done = {"status": 0, "out": "", "err": "", "commands": []}

  def run(command, **options):
    *words, record = command
    done["commands"].append(words)
    path = record.removeprefix("--record=")
    for is_chief in (True, False):
      experiment.hand_over(path, {"is_chief": is_chief}, is_chief)
    return subprocess.CompletedProcess(command, done["status"], done["out"], done["err"])

  monkeypatch.setattr(experiment.subprocess, "run", run)
  return done


DOCTOR = [sys.executable, "-m", "replicator.doctor", "--steps=3"]


@pytest.mark.parametrize("workers, launcher", [
    (1, []), (2, [sys.executable, "-m", "replicator.launch", "--workers=2", "--"])])
def test_several_processes_are_launched(workers, launcher, started):
  started["out"] = "error: of a process that ended well"
  assert experiment.recorded_by(["--steps=3"], workers) == {"is_chief": True}
  assert started["commands"] == [[*launcher, *DOCTOR]]


@pytest.mark.parametrize("out, err, message", [
    ("step 1\n[worker 0] error: of one\n[worker 1] error: of two\n", "error: last\n", "of one"),
    ("step 1\nstep 2\n", "gone\n", "step 1"), ("", "error: of Python\n", "of Python"),
    ("", "", "no output")])
def test_a_process_that_fails_is_its_first_error(out, err, message, started):
  started.update(status=1, out=out, err=err)
  with pytest.raises(UsageError) as failed:
    experiment.recorded_by(["--steps=3"])
  assert str(failed.value) == message


def test_the_first_three_of_many_are_listed():
  assert (listed("abc"), listed("abcdef")) == ("a, b, c", "a, b, c and 3 more")


def test_the_notes_of_a_row_are_wrapped_below_it():
  text = str(CheckResult("2 replicas", "agrees", "all", ("word " * 30, "--a-flag-" + "x" * 120)))
  first, *notes = text.splitlines()
  assert first.split() == ["2", "replicas", "agrees", "all"]
  assert [len(note) - len(note.lstrip()) for note in notes] == [4, 6, 4]
  assert all(len(note) <= 100 for note in notes[:2]) and notes[2].endswith("-" + "x" * 120)
