"""The proof of exact resume: the first mismatch of two runs, its cause, and real processes."""

import re

import replicator
from replicator.doctor import __main__ as doctor
from replicator.doctor import resume_check, resume_recording
from replicator.doctor.resume_check import Mismatch, Trajectory, cause_after, cause_before
from replicator.doctor.resume_recording import ResumeRecording
from replicator.doctor.verdict import AGREES, DIFFERS, FAILED, CheckResult
from replicator.training.checks.inspection import Evidence
from tests.programs import planted_bugs
from tests.programs.processes import forked

import numpy as np
import pytest
import tensorflow as tf

# ---- The first mismatch -------------------------------------------------------------------------


def trajectory(changes=()) -> Trajectory:
  """Two steps of two scalars and two variables; `changes` are those of the second."""
  values = {("scalar", "d"): 1.0, ("scalar", "g"): 2.0,
            ("variable", "net/000"): np.float32([1, 2]), ("variable", "net/001"): np.int64(3)}
  return {1: values, 2: values | dict(changes)}


def test_equal_trajectories_have_no_mismatch():
  assert resume_check.first_mismatch(trajectory(), trajectory()) is None
  lost = trajectory({("scalar", "d"): "NaN", ("variable", "net/000"): np.float32([np.nan, 1])})
  assert resume_check.first_mismatch(lost, lost) is None


@pytest.mark.parametrize(("first", "value", "words"), [
    (("scalar", "g"), 2.0000000000000004, "2.0000000000000004 instead of 2.0"),
    (("scalar", "d"), "NaN", "NaN instead of 1.0"),
    (("variable", "net/000"), np.float32([1, np.nextafter(np.float32(2), np.float32(3))]),
     "1 of 2 numbers differ, the first is [2.0000002] instead of [2.]"),
    (("variable", "net/000"), np.float64([1, 2]), "float64 [2] instead of float32"),
    (("variable", "net/000"), None, "is saved in only one of the runs"),
])
def test_a_single_bit_is_a_mismatch(first, value, words):
  changes = {first: value, ("variable", "net/001"): np.int64(4)}  # Others come later.
  found = resume_check.first_mismatch(trajectory(), trajectory(changes))
  assert (found.step, found.kind, found.name) == (2, *first)
  assert found.words.startswith(words)


@pytest.mark.parametrize("kind, name, value", [
    ("scalar", "e", 1.0), ("variable", "net/002", np.float32([1]))])
def test_a_value_that_one_run_alone_has_is_a_mismatch(kind, name, value):
  for runs in ((trajectory(), trajectory({(kind, name): value})),
               (trajectory({(kind, name): value}), trajectory())):
    found = resume_check.first_mismatch(*runs)
    assert (found.step, found.kind, found.name) == (2, kind, name)


# ---- The likely cause ---------------------------------------------------------------------------


def recording(steps: range = range(1, 7), seen=(), **fields) -> ResumeRecording:
  evidence = Evidence(lambda: None)
  vars(evidence).update(seen)
  batches = {step: f"batch {step}" for step in steps}
  return ResumeRecording(**{"evidence": evidence, "batches": batches, "has_source": True, **fields})


AT_4 = Mismatch(4, "scalar", "loss", "")


def batches(step: int) -> dict[int, str]:
  return {4: f"batch {step}", 5: f"batch {step + 1}", 6: f"batch {step + 2}"}


@pytest.mark.parametrize(("unbroken", "resumed", "cause"), [
    ({}, {"batches": batches(1)}, "the input starts over: step 4 gets the batch of step 1; load("),
    ({}, {"batches": batches(9)}, "the input: step 4 gets a different batch than in the uninter"),
    ({"has_source": False, "changed": ["inputs.position"]}, {"batches": batches(9)},
     "the input: step 4 gets a different batch than in the uninterrupted run; the data set must"),
    ({"changed": ["count"]}, {}, "Python values that change from step to step and are not in the "),
    ({"seen": {"stateful_draws": ["a tf.random draw at a.py:3"]}}, {}, "a tf.random draw at a.py"),
    ({"seen": {"python_code": ["tf.py_function at a.py:1"]}}, {}, "tf.py_function at a.py:1: "),
    ({}, {}, "something the step depends on is not in the checkpoint"),
])
def test_the_cause_after_a_resume(unbroken, resumed, cause):
  found = cause_after(AT_4, 3, recording(**unbroken), recording(range(1, 4)),
                      recording(range(4, 7), **resumed))
  assert found.startswith(cause)


def test_a_batch_that_differs_later_is_not_the_cause():
  later = recording(batches={4: "batch 4", 5: "another"})
  found = cause_after(AT_4, 3, recording(), recording(), later)
  assert not found.startswith("the input")


def test_values_that_are_others_after_the_resume_are_named_before_those_that_only_change():
  python = lambda count, size: {"size": size, "count": count, "other": "x"}
  one = recording(python={step: python(f"{step}", "1") for step in range(1, 7)},
                  changed=["step", "count"])
  again = recording(python={step: python(f"{step}", "2") for step in range(1, 4)})
  resumed = recording(range(4, 7), python={
      4: python("1", "2"), 5: {**python("2", "2"), "other": "y"}})
  found = cause_after(AT_4, 3, one, again, resumed)
  assert found.startswith("Python values that differ after the resume and are not in the "
                          "checkpoint: count; ")


def test_the_cause_before_the_interruption():
  first = Mismatch(2, "scalar", "loss", "")
  one, other = recording(), recording(batches={1: "batch 1", 2: "another"})
  assert cause_before(first, one, one).startswith("two processes with the same seed")
  assert "each process gets a different batch at step 2" in cause_before(first, one, other)
  assert "train.deterministic = False" in cause_before(first, one, other, False)


# ---- A step and its bugs ------------------------------------------------------------------------


@pytest.fixture
def rows(monkeypatch):
  """A function that examines an experiment, with new step objects in place of new processes."""
  def examine(*params: str, main=planted_bugs.main) -> list[CheckResult]:
    params = ("train.global_batch_size = 8", *params)
    monkeypatch.setattr(
        resume_check.ResumeCheck, "_train", lambda check, workdir, until: resume_recording.record(
            main, [], params, str(workdir), until, 4))
    return list(resume_check.ResumeCheck([], [], params, 4).results())
  return examine


class Noisy(tf.Module):
  """A step that draws with TensorFlow, and reads a number when it is traced."""

  def __init__(self):
    super().__init__()
    self.noise = 0.1

  def __call__(self, batch):
    return {"loss": tf.reduce_mean(batch["x"]) + self.noise * tf.random.normal([])}


class CountedPoints(planted_bugs.Points):
  """Examples that ignore the index."""

  def __init__(self):
    self.position = tf.Variable(0, dtype=tf.int64)

  def load(self, index):
    return super().load(self.position.assign_add(1) % self.size)


def trains(make_step, source=planted_bugs.Points, before_call=None):
  return lambda workdir: replicator.train(make_step, source(), before_call=before_call,
                                          workdir=workdir)


def test_a_sound_step_resumes_exactly(rows):
  # It is not evaluated, so that no checkpoint can be the best one, and no evaluation ends it.
  before, after = rows("Regression.norm = 'global'", "Checkpoints.keep_best = 'eval/x'",
                       "train.callbacks = [@EarlyStopping()]", "EarlyStopping.patience = 2",
                       "EarlyStopping.metric = 'eval/x'")
  assert (before.verdict, after.verdict) == (AGREES, AGREES)
  assert re.fullmatch(r"steps 1 to 2: 1\d variables and \d scalars of each, bit for bit",
                      before.detail)
  assert after.detail.startswith("steps 3 to 4: ")


def test_an_input_that_ignores_its_position_is_found(rows):
  step = lambda batch: {"loss": tf.reduce_mean(batch["x"])}
  before, after = rows(main=trains(lambda: step, CountedPoints))
  assert (before.verdict, after.verdict) == (AGREES, DIFFERS)
  assert "the input starts over: step 3 gets the batch of step 1; load(i" in after.notes[1]


def test_python_state_and_draws_without_a_saved_state_are_found(rows):
  def louder(step, number):
    step.noise = 0.2 if number >= 2 else step.noise

  before, after = rows(main=trains(Noisy, before_call=louder))
  assert (before.verdict, after.verdict) == (AGREES, DIFFERS)
  assert after.notes[0].startswith("first: scalar 'loss' at step 3: ")
  assert re.match("likely cause: Python values that change from step to step and are not in "
                  "the checkpoint: noise; keep them in tf.Variables .*; or a tf.random draw at "
                  "tests/replicator/doctor/test_resume_check.py", after.notes[1])


def test_a_training_that_fails_is_a_row(rows):
  def main(workdir):
    raise replicator.UsageError("no such folder")

  (training,) = rows(main=main)
  assert (training.verdict, training.detail) == (FAILED, "no such folder")


# ---- The command line ---------------------------------------------------------------------------


def test_asynchronous_steps_are_refused_before_anything_is_printed(capsys, monkeypatch):
  monkeypatch.setattr(doctor, "load", lambda experiment: None)
  assert doctor.main(["--experiment=x", "--check_resume",
                      "--gin_param=Replicator.strategy = 'parameter_server'"]) == 2
  output = capsys.readouterr()
  assert output.out == "" and "overtake each other" in output.err


def check(*params: str, status: int = 0) -> str:
  done = forked("-m", "replicator", "doctor", "--experiment=tests.programs.planted_bugs",
                "--check_resume", "--steps=4", "--gin_param=train.global_batch_size = 8",
                *(f"--gin_param={param}" for param in params), status=status)
  assert done.stderr == ""
  return re.sub(r"\s+", " ", done.stdout)


@pytest.mark.slow
def test_two_processes_resume_exactly_with_what_each_replica_has_on_purpose():
  printed = check("Replicator.strategy = 'multi_worker_mirrored'",
                  "Regression.bug = 'unaveraged_variable'")
  assert re.search(r"in a new process agrees steps 1 to 2: \d+ variables", printed)
  assert re.search(r"after the resume agrees steps 3 to 4: \d+ variables", printed)
  assert printed.endswith("This step resumes exactly. ")


@pytest.mark.slow
def test_a_bug_of_a_new_process_is_found_and_named():
  printed = check("Regression.bug = 'unseeded'", status=1)
  assert "in a new process DIFFERS steps 1 to 2" in printed
  assert "likely cause: two processes with the same seed differ" in printed
  assert printed.endswith("This step does not resume exactly. ")


class Counting(replicator.Callback):
  """Counts in Python, or in a variable."""

  def __init__(self):
    self.count = 0

  def after_steps(self, run):
    self.count += 1
    run.say(f"call {self.count}")


class Kept(replicator.Callback, tf.Module):
  def __init__(self):
    super().__init__()
    self.count = tf.Variable(0)

  def after_steps(self, run):
    self.count.assign_add(1)


def test_a_count_that_a_callback_keeps_in_python_is_named(rows):
  def main(make):
    return lambda workdir: replicator.train(
        planted_bugs.Regression, planted_bugs.Points(), workdir=workdir, callbacks=[make()])
  *_, lost = rows(main=main(Counting))
  assert (lost.verdict, lost.detail) == (
      DIFFERS, "the callback Counting.count after the resume")
  assert "make the callback a tf.Module" in lost.notes[0]
  assert [row.verdict for row in rows(main=main(Kept))] == [AGREES, AGREES]


def test_a_program_that_passes_its_settings_in_python_is_checked(rows):
  main = lambda workdir: replicator.train(
      planted_bugs.Regression, planted_bugs.Points(), workdir=workdir, steps=100, log_every=50,
      eval_every=10, checkpoint_every=50, steps_per_call=10,
      replicator=replicator.Replicator("default"))
  assert [row.verdict for row in rows(main=main)] == [AGREES, AGREES]
