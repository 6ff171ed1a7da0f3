"""The proof of exact resume: the first mismatch of two runs, its cause, and real processes."""

import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from replicator.doctor import __main__ as doctor
from replicator.doctor import resume_check, resume_recording
from replicator.doctor.resume_check import Mismatch, Trajectory, cause_after, cause_before
from replicator.doctor.resume_recording import ResumeRecording
from replicator.doctor.verdict import AGREES, DIFFERS, FAILED, CheckResult
from replicator.errors import UsageError
from replicator.training.observer import Observer
from tests.programs import planted_bugs

ROOT = pathlib.Path(__file__).parents[3]
STEPS = range(1, 3)


# ---- The first mismatch -------------------------------------------------------------------------


def trajectory(**changes) -> Trajectory:
  """Two steps of two scalars and two variables; `changes` are those of the second."""
  scalars, variables = {"d": 1.0, "g": 2.0}, {"net/000": np.float32([1, 2]), "net/001": np.int64(3)}
  later = {name.replace("__", "/"): value for name, value in changes.items()}
  return Trajectory({1: scalars, 2: {n: later.get(n, v) for n, v in scalars.items()}},
                {1: variables, 2: {n: later.get(n, v) for n, v in variables.items()}})


def test_equal_trajectories_have_no_mismatch():
  assert resume_check.first_mismatch(trajectory(), trajectory(), STEPS) is None
  lost = trajectory(d="NaN", net__000=np.float32([np.nan, 1]))
  assert resume_check.first_mismatch(lost, lost, STEPS) is None


@pytest.mark.parametrize(("changes", "kind", "name", "words"), [
    ({"g": 2.0000000000000004}, "scalar", "g", "2.0000000000000004 instead of 2.0"),
    ({"d": "NaN", "net__000": np.float32([0, 0])}, "scalar", "d", "NaN instead of 1.0"),
    ({"net__000": np.float32([1, np.nextafter(np.float32(2), np.float32(3))])}, "variable",
     "net/000", "1 of 2 numbers differ, the first is [2.0000002] instead of [2.]"),
    ({"net__001": np.int64(4)}, "variable", "net/001", "1 of 1 numbers differ"),
    ({"net__000": np.float64([1, 2])}, "variable", "net/000", "float64 [2] instead of float32"),
    ({"net__000": None}, "variable", "net/000", "is saved in only one of the runs"),
])
def test_a_single_bit_is_a_mismatch(changes, kind, name, words):
  found = resume_check.first_mismatch(trajectory(), trajectory(**changes), STEPS)
  assert (found.step, found.kind, found.name) == (2, kind, name)
  assert found.words.startswith(words)


def test_steps_that_are_not_compared_may_differ():
  assert resume_check.first_mismatch(trajectory(), trajectory(d=9.0), range(1, 2)) is None


# ---- The likely cause ---------------------------------------------------------------------------


UNBROKEN = ResumeRecording(batches={step: f"batch {step}" for step in range(1, 7)}, source="source")
RESUMED = ResumeRecording(batches={step: f"batch {step}" for step in range(4, 7)})
AT_4 = Mismatch(4, "scalar", "loss", "")


def changed(recording: ResumeRecording, **fields) -> ResumeRecording:
  return ResumeRecording(**{**vars(recording), **fields})


def batches(step: int) -> dict[int, str]:
  return {4: f"batch {step}", 5: f"batch {step + 1}", 6: f"batch {step + 2}"}


@pytest.mark.parametrize(("unbroken", "resumed", "cause"), [
    ({}, {"batches": batches(1)}, "the input starts over: step 4 gets the batch of step 1; load("),
    ({}, {"batches": batches(9)}, "the input: step 4 gets another batch than in the uninterrupted"),
    ({"source": "function", "changed": ["inputs.position"]}, {"batches": batches(9)},
     "the input: step 4 gets another batch than in the uninterrupted run; the data set must"),
    ({"changed": ["count"]}, {}, "Python values that change from step to step and are in no check"),
    ({"draws": ["a tf.random draw at my_step.py:3"]}, {}, "a tf.random draw at my_step.py:3: the"),
    ({"python_code": ["tf.py_function at a.py:1"]}, {}, "tf.py_function at a.py:1: "),
    ({}, {}, "something the step depends on is in no checkpoint"),
])
def test_the_cause_after_a_resume(unbroken, resumed, cause):
  found = cause_after(AT_4, 3, changed(UNBROKEN, **unbroken), changed(RESUMED, **resumed))
  assert found.startswith(cause)


def test_a_batch_that_differs_later_is_not_the_cause():
  later = changed(RESUMED, batches={4: "batch 4", 5: "another"})
  assert not cause_after(AT_4, 3, UNBROKEN, later).startswith("the input")


def test_the_cause_before_the_interruption():
  first = Mismatch(2, "scalar", "loss", "")
  assert cause_before(first, UNBROKEN, UNBROKEN).startswith("two processes with the same seed")
  other = changed(UNBROKEN, batches={1: "batch 1", 2: "another"})
  assert "each process gets another batch at step 2" in cause_before(
      first, UNBROKEN, other)
  assert "train.deterministic = False" in cause_before(first, UNBROKEN, other, False)


# ---- What is recorded ---------------------------------------------------------------------------


def test_a_recording_comes_back_from_its_file(tmp_path):
  UNBROKEN.write(tmp_path / "recording.json")
  assert resume_recording.load(tmp_path / "recording.json") == UNBROKEN


# ---- A step and its bugs ------------------------------------------------------------------------


@pytest.fixture
def rows(restored, monkeypatch, tmp_path):
  """A function that examines a planted bug, with new step objects in place of new processes."""
  def examine(*params: str) -> list[CheckResult]:
    params = ("train.global_batch_size = 8", *params)

    def train(check, workdir, until):
      path = tmp_path / f"{workdir.name}-{until}.json"
      resume_check.train(planted_bugs.main, [], params, str(workdir), until, str(path), 4)
      return resume_recording.load(path)

    monkeypatch.setattr(resume_check.ResumeCheck, "_train", train)
    return list(resume_check.ResumeCheck([], [], params, 4).results())
  return examine


def test_a_sound_step_resumes_exactly(rows):
  # It is not evaluated, so that no checkpoint can be the best one.
  training, before, after = rows("Regression.norm = 'global'", "Checkpoints.keep_best = 'eval/x'")
  assert training.detail.startswith("'default' on 1 replica, batches of 8; 3 runs in")
  assert (before.verdict, after.verdict) == (AGREES, AGREES)
  assert re.fullmatch(r"steps 1 to 2: 1\d variables and \d scalars of each, bit for bit",
                      before.detail)
  assert after.detail.startswith("steps 3 to 4: ")


def test_draws_without_a_saved_state_are_found(rows):
  _, before, after = rows("Regression.bug = 'tf_random'")
  assert (before.verdict, after.verdict) == (AGREES, DIFFERS)
  assert after.notes[0].startswith("first: scalar 'loss' at step 3: ")
  assert after.notes[1].startswith("likely cause: a tf.random draw at tests/programs/planted_bugs")


def test_an_input_that_ignores_its_position_is_found(rows):
  _, before, after = rows("inputs.bug = 'position'")
  assert (before.verdict, after.verdict) == (AGREES, DIFFERS)
  assert "the input starts over: step 3 gets the batch of step 1; load(i" in after.notes[1]


@pytest.mark.slow
def test_a_layer_that_freezes_in_between_resumes_exactly(rows):
  _, before, after = rows("between.bug = 'freeze'")
  assert (before.verdict, after.verdict) == (AGREES, AGREES)


@pytest.mark.parametrize("param, cause", [
    ("between.bug = 'attribute'", "Python values that change from step to step and are in no "
     "checkpoint: noise; keep them in tf.Variables"),
    pytest.param("between.bug = 'freeze_by_count'", "Python values that change from step to step "
                 "and are in no checkpoint: before_call.len(calls);", marks=pytest.mark.slow),
    pytest.param("Regression.bug = 'list'", "Python values that change from step to step and are "
                 "in no checkpoint: len(seen);", marks=pytest.mark.slow)])
def test_python_state_that_the_step_depends_on_is_found(param, cause, rows):
  _, before, after = rows(param)
  assert (before.verdict, after.verdict) == (AGREES, DIFFERS)
  assert " at step 3: " in after.notes[0]
  assert after.notes[1].startswith(f"likely cause: {cause}")


def test_a_variable_that_parts_is_found(rows):
  (training,) = rows("Regression.bug = 'parted_variable'", "Replicator.strategy = 'mirrored'",
                     "Replicator.logical_cpus = 2")
  assert training.verdict == FAILED
  assert re.match(r"the variable 'own' \(.*\) has another value on each replica, .* at "
                  r"tests/programs/planted_bugs.py:\d+; average it first", training.detail)


# ---- The command line ---------------------------------------------------------------------------


@pytest.mark.parametrize(("words", "message"), [
    (["--steps=1"], "--steps=1: must be at least 2"),
    (["--gin_param=Replicator.strategy = 'parameter_server'"], "overtake each other"),
])
def test_what_cannot_be_proved_is_a_single_error_line(words, message, capsys, restored,
                                                      monkeypatch):
  monkeypatch.setattr(doctor, "load", lambda experiment: None)
  assert doctor.main(["--experiment=x", "--check_resume", *words]) == 2
  output = capsys.readouterr()
  assert output.out == "" and output.err.count("\n") == 1 and message in output.err


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize(("verdicts", "status", "conclusion"), [
    ([AGREES, AGREES], 0, "This step resumes exactly."),
    ([AGREES, DIFFERS], 1, "This step does not resume exactly."),
    ([FAILED], 1, "This step does not resume exactly.")])
def test_the_status_says_whether_a_step_resumes(verdicts, status, conclusion, monkeypatch, capsys):
  monkeypatch.setattr(doctor, "load", lambda experiment: None)
  monkeypatch.setattr(resume_check.ResumeCheck, "results",
                      lambda check: (CheckResult("row", verdict, "") for verdict in verdicts))
  monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
  assert doctor.main(["--experiment=x", "--check_resume"]) == status
  title, *_, last = capsys.readouterr().out.splitlines()
  assert title.startswith("x: 6 steps, against the same run ended after step 3 and resumed in a ")
  assert last == conclusion
  assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"  # It resumes where it trains.


@pytest.mark.usefixtures("restored")
def test_a_process_of_the_proof_trains_as_the_command_line_says(monkeypatch, capsys):
  calls = []
  monkeypatch.setattr(doctor, "load", lambda experiment: None)
  monkeypatch.setattr(resume_check, "train", lambda *arguments: calls.append(arguments))
  assert doctor.main(["--experiment=x", "--check_resume", "--gin_param=a.b = 1", "--steps=4",
                      "--precision=float64", "--train_in=run", "--train_until=2",
                      "--record=r.json"]) == 0
  assert calls == [(None, [], ["a.b = 1", "train.precision = 'float64'"], "run", 2, "r.json", 4)]
  assert capsys.readouterr().out == ""


def check(*params: str) -> tuple[int, str]:
  done = subprocess.run(
      [sys.executable, "-m", "replicator.doctor", "--experiment=tests.programs.planted_bugs",
       "--check_resume", "--steps=4", "--gin_param=train.global_batch_size = 8",
       *(f"--gin_param={param}" for param in params)], cwd=ROOT, capture_output=True, text=True)
  assert done.stderr == ""
  return done.returncode, re.sub(r"\s+", " ", done.stdout)


def test_a_training_that_reports_nothing_is_noticed(restored, monkeypatch, tmp_path):
  params = ["train.global_batch_size = 8"]
  for name, error in [("saved", "the experiment ended before step 2"),
                      ("run_step", "did not report its batches and its step"),
                      ("batch", "did not report its batches and its step")]:
    with monkeypatch.context() as patched, pytest.raises((UsageError, RuntimeError), match=error):
      patched.setattr(resume_recording._ResumeRecorder, name, getattr(Observer, name))
      resume_check.train(planted_bugs.main, [], params, str(tmp_path / name), 2,
                         str(tmp_path / "recording.json"), 2)


@pytest.mark.slow
def test_two_processes_resume_exactly():
  status, printed = check("Replicator.strategy = 'multi_worker_mirrored'")
  assert status == 0, printed
  assert "'multi_worker_mirrored' on 2 replicas" in printed
  assert re.search(r"in a new process agrees steps 1 to 2: \d+ variables", printed)
  assert re.search(r"after the resume agrees steps 3 to 4: \d+ variables", printed)
  assert printed.endswith("This step resumes exactly. ")


@pytest.mark.slow
def test_two_processes_find_a_variable_that_parts():
  status, printed = check("Replicator.strategy = 'multi_worker_mirrored'",
                          "Regression.bug = 'parted_variable'")
  assert status == 1
  assert re.search(r"training FAILED the variable 'own' \(.*\) has another value on each replica, "
                   r".* at tests/programs/planted_bugs.py:\d+; average", printed), printed


@pytest.mark.slow
def test_two_processes_keep_what_each_replica_has_on_purpose():
  status, printed = check("Replicator.strategy = 'multi_worker_mirrored'",
                          "Regression.bug = 'unaveraged_variable'")
  assert status == 0, printed


@pytest.mark.slow
@pytest.mark.parametrize(("bug", "first", "cause"), [
    ("Regression.bug = 'counter'", "after the resume DIFFERS steps 3 to 4 first: scalar 'loss' at "
     "step 3", "Python values that change from step to step and are in no checkpoint: count;"),
    ("inputs.bug = 'unseeded'", "in a new process DIFFERS steps 1 to 2",
     "the input: each process gets another batch at step 1"),
])
def test_a_bug_of_a_new_process_is_found_and_named(bug, first, cause):
  status, printed = check(bug)
  assert status == 1
  assert first in printed and f"likely cause: {cause}" in printed
  assert printed.endswith("This step does not resume exactly. ")
