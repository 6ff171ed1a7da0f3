"""Trackers of trainings: they equal `metrics.jsonl` after each of their ends and resumes."""

from replicator import Evaluation
from replicator.errors import Preempted, RunFailed
from replicator.training.workdir import reader
from tests.programs.counter import Counter
from tests.programs.logs import timed_rows
from tests.replicator.tools.trackers.conftest import Memory
from tests.replicator.training import runs

import gin
import numpy as np
import pytest

memory = Memory()


@gin.configurable(module="tests")
def remember() -> Memory:
  return memory


@pytest.fixture(autouse=True)
def nothing_remembered():
  memory.__init__()


def evaluate(counter):
  return Evaluation({"count": counter.count.numpy()},
                    images={"samples": np.zeros([2, 2, 3], np.uint8)},
                    histograms={"codes": np.arange(4.0)})


def train(workdir, steps, *bindings, before_call=None):
  runs.train(workdir, f"train.steps = {steps}", "train.eval_every = 4",
             "train.checkpoint_every = 4", "train.callbacks = [@remember()]",
             "Guard.signals = False", *bindings, step=Counter, evaluate=evaluate,
             before_call=before_call)


def logged(workdir):
  return {row.pop("step"): row for row in timed_rows(workdir)}


def untimed(lines):
  return {step: {name: x for name, x in line.items() if name not in reader.TIMES}
          for step, line in lines.items()}


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
  assert sorted(memory.images) == [0, 4, 8, 10]
  assert {line.step for line in memory.sent if "eval/codes" in line.histograms} == {0, 4, 8, 10}


@pytest.mark.parametrize("bindings, at", [([], 7), (["Guard.action = 'roll_back'"], 2)],
                         ids=["step 4", "step 0"])
def test_a_run_that_is_resumed_at_an_earlier_step_has_one_record(bindings, at, tmp_path):
  def interrupt(step, number):
    if number == at:
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    train(tmp_path, 10, *bindings, before_call=interrupt)
  (lines,) = memory.records.values()
  before = {step: dict(line) for step, line in lines.items()}
  assert list(before) == list(range(at + 1))  # All that was logged, and not saved.
  train(tmp_path, 10, *bindings)
  (lines,) = memory.records.values()
  assert {step: lines[step] for step in before} == before  # Nothing was sent again.
  assert untimed(lines) == untimed(logged(tmp_path))


def test_a_resumed_run_that_logs_other_numbers_begins_another_record(tmp_path):
  def interrupt(step, number):
    if number == 7:
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    train(tmp_path, 10, before_call=interrupt)
  train(tmp_path, 10, before_call=lambda counter, number: counter.count.assign_add(1.0))
  assert len(memory.records) == 2
  assert untimed(list(memory.records.values())[1]) == untimed(logged(tmp_path))


def test_a_rollback_leaves_no_line_that_was_taken_back(tmp_path):
  spoilt = []

  def spoil_once(step, number):
    if number == 6 and not spoilt:
      spoilt.append(number)
      spoil(step, number)

  train(tmp_path, 10, "Guard.action = 'roll_back'", before_call=spoil_once)
  assert spoilt
  assert list(memory.records.values())[-1] == logged(tmp_path)
  assert list(memory.status.values())[-1] == "finished"


def test_a_run_that_failed_is_tracked_to_its_end(tmp_path):
  with pytest.raises(RunFailed):
    train(tmp_path, 10, before_call=spoil)
  assert max(logged(tmp_path)) == 6
  assert list(memory.status.values()) == ["failed"]
  assert list(memory.records.values()) == [logged(tmp_path)]
  train(tmp_path, 10)
  assert [untimed(lines) for lines in memory.records.values()] == [untimed(logged(tmp_path))]
