"""Trackers of a training: they equal `metrics.jsonl` after each of its ends and resumes."""

import gin
import numpy as np
import pytest
import tensorflow as tf

from replicator import Evaluation
from replicator.errors import Preempted, RunFailed
from tests.programs.counter import Counter
from tests.programs.logs import timed_rows
from tests.programs.refusals import refusal
from tests.replicator.trackers.conftest import Memory
from tests.replicator.training import runs

memory = Memory()


@gin.configurable(module="tests")
def remember() -> Memory:
  return memory


@pytest.fixture(autouse=True)
def nothing_remembered():
  memory.__init__()


def evaluate(counter):
  return Evaluation({"count": counter.count.numpy()}, np.zeros([2, 2, 3], np.uint8))


def train(workdir, steps, *bindings, before_call=None):
  runs.train(workdir, f"train.steps = {steps}", "train.eval_every = 4",
             "train.checkpoint_every = 4", "train.trackers = [@remember()]",
             "Guard.signals = False", *bindings, step=Counter, evaluate=evaluate,
             before_call=before_call)


def logged(workdir):
  return {row.pop("step"): row for row in timed_rows(workdir)}


def spoil(counter, number):
  """Makes the counts from step 6 on infinite."""
  if number == 6:
    counter.count.assign(float("inf"))


def test_a_run_that_is_stopped_and_resumed_has_one_record(tmp_path):
  with pytest.raises(Preempted):
    train(tmp_path, 10, before_call=runs.stopping_at(5))
  assert list(memory.status.values()) == ["interrupted"]
  assert list(memory.records.values()) == [logged(tmp_path)]
  for _ in range(2):  # The second time, nothing is left to do.
    train(tmp_path, 10)
    assert list(memory.status.values()) == ["finished"]
    assert list(memory.records.values()) == [logged(tmp_path)]
    assert sorted(logged(tmp_path)) == list(range(11))


def test_a_run_that_resumes_at_step_0_has_one_record(tmp_path):
  rolls_back = "Guard.action = 'roll_back'"  # It has a checkpoint of step 0.

  def interrupt(step, number):
    if number == 2:
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    train(tmp_path, 10, rolls_back, before_call=interrupt)
  assert [list(lines) for lines in memory.records.values()] == [[0]]
  train(tmp_path, 10, rolls_back)
  assert list(memory.records.values()) == [logged(tmp_path)]


def test_a_rollback_leaves_no_line_that_was_taken_back(tmp_path):
  spoilt = []

  def spoil_once(step, number):
    if number == 6 and not spoilt:
      spoilt.append(number)
      spoil(step, number)

  train(tmp_path, 10, "Guard.action = 'roll_back'", before_call=spoil_once)
  assert spoilt
  assert list(memory.records.values()) == [logged(tmp_path)]
  assert list(memory.status.values()) == ["finished"]


def test_a_run_that_failed_is_tracked_to_its_end_and_resumes_in_another_record(tmp_path):
  with pytest.raises(RunFailed):
    train(tmp_path, 10, before_call=spoil)
  failed = logged(tmp_path)
  assert max(failed) == 6
  assert list(memory.status.values()) == ["failed"]
  assert list(memory.records.values()) == [failed]
  train(tmp_path, 10)
  assert list(memory.records.values()) == [failed, logged(tmp_path)]


@pytest.mark.parametrize("make, message", [
    (lambda: Evaluation([0.5]), "Evaluation: the scalars are a list; write a dict of numbers"),
    (lambda: Evaluation({"score": np.zeros([2])}), "the scalar 'score' is float64 [2]; write a n"),
    (lambda: Evaluation({"score": "0.5"}), "the scalar 'score' is a str; write a name and one num"),
    (lambda: Evaluation({"score": None}), "the scalar 'score' is a NoneType; write a name and one"),
    (lambda: Evaluation({"score": [0.5, [1]]}), "the scalar 'score' is a list; write a name and"),
    (lambda: Evaluation({1: 0.5}), "the scalar 1 is a float; write a name and one number"),
    (lambda: Evaluation({}, np.zeros([2, 2, 3])), "the picture is float64 [2, 2, 3]; write uint8"),
    (lambda: Evaluation({}, np.zeros([2, 2], np.uint8)), "the picture is uint8 [2, 2]; write uint"),
])
def test_an_evaluation_of_another_form_is_refused(make, message):
  assert refusal(make).startswith("Evaluation: ") and message in refusal(make)


def test_numbers_and_pictures_of_tensorflow_are_taken():
  number = tf.constant(0.5, tf.bfloat16)
  found = Evaluation({"score": number, "count": np.int64(3)}, tf.zeros([2, 2, 3], tf.uint8))
  assert float(found.scalars["score"]) == 0.5 and isinstance(found.picture, np.ndarray)


def test_a_run_that_an_evaluation_ends_says_so(tmp_path):
  outcomes = iter([{"score": 0.5}, {"score": None}])
  said = refusal(runs.train, tmp_path, "train.steps = 4", "train.eval_every = 2", step=Counter,
                 evaluate=lambda step: Evaluation(next(outcomes)))
  assert f"failed: {said.partition(' ')[0]}" in (tmp_path / "report.html").read_text()


def test_functions_that_take_more_by_another_way_are_called(tmp_path):
  @gin.configurable(module="tests")
  def evaluates(step, number):
    return Evaluation({"number": number})

  runs.train(tmp_path, "train.steps = 1", "train.eval_every = 1", "evaluates.number = 3",
             step=Counter, evaluate=evaluates)
  assert timed_rows(tmp_path)[-1]["eval/number"] == 3


@pytest.mark.parametrize("functions, message", [
    ({"evaluate": lambda step: {"score": 0.5}}, "evaluate returned a dict; return replicator.Ev"),
    ({"evaluate": lambda: Evaluation({})}, "train: evaluate is called with the step; write def ev"),
    ({"before_call": lambda step: None},
     "train: before_call is called with the step and its number; write def before_call(step, numb"),
    ({"before_call": 3}, "train: before_call is a int; give a function of (step, number)")])
def test_functions_of_another_form_are_refused(functions, message, tmp_path):
  assert refusal(runs.train, tmp_path, "train.steps = 1", "train.eval_every = 1", step=Counter,
                 **functions).startswith(message)
