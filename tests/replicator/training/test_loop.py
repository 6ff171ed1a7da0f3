"""A training and what it leaves behind. Resuming, and other strategies, are in checkpoints/."""

import errno
import functools
import json
import os
import re
import threading
import time

import replicator
from replicator import Evaluation, UsageError, atomic
from replicator.console.status import Progress
from replicator.errors import RunFailed, chain_of
from replicator.training import journal
from replicator.training.checkpoints import saver, store
from tests.programs.counter import Counter
from tests.programs.logs import rows, timed_rows
from tests.programs.two_networks import Points, evaluate
from tests.replicator.training.runs import MIRRORED_2, column, train

import numpy as np
import pytest
import tensorflow as tf

# ---- What a run leaves behind -------------------------------------------------------------------


def test_a_run_trains_and_leaves_its_files(tmp_path, capsys):
  networks = train(tmp_path, "train.steps = 10", "train.log_every = 5", "train.eval_every = 5",
                   "train.checkpoint_every = 5", "train.seed = 3", inputs=Points(),
                   evaluate=evaluate)
  assert networks.optimizers["critic"].keras_optimizer.iterations.numpy() == 10
  printed = capsys.readouterr().out
  assert printed.count("evaluation: mean of 8 samples\n") == 1  # It is the same every time.
  assert all(f"step {step}  eval/mean " in printed for step in (0, 5, 10))
  # One object for each log point; what an evaluation found is part of it.
  first, *others = timed_rows(tmp_path)
  assert list(first) == ["step", "seconds", "eval/mean"]
  assert [list(row) for row in others] == [
      ["step", "seconds", "critic", "generator", "grad_norm/generator", "grad_norm/critic",
       "learning_rate/generator", "learning_rate/critic", "data_wait",
       "system/examples_per_second", "system/memory_mib", "eval/mean"]] * 2
  assert [row["step"] for row in [first, *others]] == [0, 5, 10]
  assert 0 <= first["seconds"] < others[0]["seconds"] <= others[1]["seconds"]
  assert all(np.isfinite(value) for row in others for value in row.values())
  assert all(0 <= row["data_wait"] <= 1 for row in others)
  assert sorted(path.name for path in (tmp_path / "samples").iterdir()) == [
      f"step-{s:08d}.png" for s in (0, 5, 10)]
  begun, *lines = (tmp_path / "log.txt").read_text().splitlines()
  assert begun.startswith("--- 2") and " UTC: python " in begun
  assert lines == [line for line in printed.splitlines() if not line.startswith(" ")]
  facts = json.loads((tmp_path / "run.json").read_text())
  assert [row[2:] for row in facts["networks"] if row[0] == "generator"] == [
      ["kernel 3x4", 12], ["gamma 4, beta 4, moving_mean 4 (not trained), moving_variance 4 (not "
                           "trained)", 8], ["kernel 4x3, bias 3", 15]]
  expected = {"strategy": "default", "num_replicas": 1, "num_workers": 1, "global_batch_size": 8,
              "seed": 3, "precision": "float32", "steps": 10, "resumed": [],
              "evaluation": "mean of 8 samples"}
  assert {name: facts[name] for name in expected} == expected
  assert store.steps_of(tmp_path / "checkpoints") == [5, 10]
  assert list(tmp_path.glob("events.out.tfevents.*"))
  assert "finished at step 10" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("steps_per_call, strategy, replicas", [(1, [], 1), (2, MIRRORED_2, 2)])
def test_a_log_point_has_the_mean_since_the_last_one(steps_per_call, strategy, replicas, tmp_path):
  counter = train(tmp_path, "train.steps = 10", "train.log_every = 4", *strategy,
                  f"train.steps_per_call = {steps_per_call}", step=Counter)
  assert column(tmp_path, "count") == {4: 2.5, 8: 6.5, 10: 9.5}
  assert column(tmp_path, "number") == {4: 1.5, 8: 5.5, 10: 8.5}  # The steps count from 0.
  assert set(column(tmp_path, "replica").values()) == {(replicas - 1) / 2}
  assert counter.count.numpy() == 10


def test_evaluations_come_at_their_steps_and_at_the_end(tmp_path):
  def count(counter):
    return Evaluation({"count": counter.count.numpy(), "number": replicator.step_number()},
                      axes=("number",))
  train(tmp_path, "train.steps = 10", "train.log_every = 10", "train.eval_every = 4",
        step=Counter, evaluate=count)
  for name in ("count", "number"):  # Its random draws belong to the step.
    assert column(tmp_path, f"eval/{name}") == {0: 0, 4: 4, 8: 8, 10: 10}
  assert column(tmp_path, "count") == {10: 5.5}
  assert not list((tmp_path / "samples").iterdir())  # It drew nothing.
  facts = json.loads((tmp_path / "run.json").read_text())
  assert facts["axes"] == ["eval/number"] and "evaluation" not in facts


def test_what_comes_before_a_call_and_an_evaluation_know_the_number_of_their_step(tmp_path):
  before, evaluated = [], []

  def before_call(step, number):
    before.append((number, int(replicator.step_number())))

  def evaluation(step):
    evaluated.append(int(replicator.step_number()))
    return Evaluation({})

  train(tmp_path, "train.steps = 6", "train.log_every = 2", "train.eval_every = 4",
        "train.steps_per_call = 2", step=Counter, evaluate=evaluation, before_call=before_call)
  assert before == [(0, 0), (2, 2), (4, 4)] and evaluated == [0, 4, 6]


def test_a_step_is_traced_after_its_first_before_call_and_evaluated_before(tmp_path):
  class Given(tf.Module):
    rate = None

    def __call__(self):
      return {"rate": tf.constant(self.rate)}

  seen = []
  train(tmp_path, "train.steps = 1", "train.eval_every = 1", step=Given,
        evaluate=lambda step: seen.append(step.rate) or Evaluation({}),
        before_call=lambda step, number: setattr(step, "rate", 0.5))
  assert column(tmp_path, "rate") == {1: 0.5} and seen == [None, 0.5]


def test_operations_are_deterministic_and_signals_logged_unless_that_is_off(tmp_path, monkeypatch):
  calls = []
  monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: calls.append(1))
  train(tmp_path / "off", "train.steps = 1", "train.deterministic = False", "Guard.signals = False",
        inputs=Points())
  assert not calls
  assert set(timed_rows(tmp_path / "off")[0]) == {
      "step", "seconds", "data_wait", "system/memory_mib", "critic", "generator"}
  train(tmp_path / "on", "train.steps = 1", step=Counter)
  assert calls


def test_nothing_is_evaluated_or_saved_where_nobody_asked(tmp_path):
  train(tmp_path, "train.steps = 3", step=Counter, evaluate=pytest.fail)
  assert not any(name.startswith("eval/") for row in timed_rows(tmp_path) for name in row)
  assert [row["count"] for row in timed_rows(tmp_path)] == [1.0, 2.0, 3.0]
  assert not (tmp_path / "checkpoints").exists()


def test_a_fault_of_the_disk_of_the_data_is_not_one_of_the_workdir(tmp_path):
  class Torn:
    size = 8

    def load(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
      def read(index):
        raise UsageError(f"{index}.jpg cannot be read ({os.strerror(errno.EIO)})")
      return {"x": tf.ensure_shape(tf.numpy_function(read, [index], tf.float32), [])}

  with pytest.raises(tf.errors.OpError) as error:
    train(tmp_path, "train.steps = 1", inputs=Torn(),
          step=lambda: lambda batch: {"x": tf.reduce_mean(batch["x"])})
  assert str(chain_of(error.value)[-1]).endswith(".jpg cannot be read (Input/output error)")


def test_a_checkpoint_that_cannot_be_written_ends_the_run_before_the_next(tmp_path, monkeypatch):
  went_on, failed = threading.Event(), threading.Event()

  def full(*arguments):
    assert went_on.wait(timeout=60)  # The loop does not wait for it.
    failed.set()
    raise OSError(errno.ENOSPC, "No space left on device")

  def before_call(step, number):
    if number > 20:
      went_on.set()
      failed.wait(timeout=60)
      time.sleep(0.02)

  monkeypatch.setattr(saver, "write_bundle", full)
  with pytest.raises(RunFailed, match="step-00000020: could not be saved"):
    train(tmp_path, "train.steps = 40", "train.checkpoint_every = 20", step=Counter,
          before_call=before_call)
  assert 20 < rows(tmp_path)[-1]["step"] < 40


@pytest.mark.parametrize("bundles_too, message", [
    (True, "step-00000002: could not be saved (No space left on device); the earlier check"),
    (False, "{}: can no longer be written (No space left on device); the checkpoints are in"),
])
def test_a_disk_that_takes_not_even_the_end_of_a_run_is_named(
    bundles_too, message, tmp_path, monkeypatch):
  def full(*arguments):
    raise OSError(errno.ENOSPC, "No space left on device")

  def before_call(step, number):
    if number == 1:
      monkeypatch.setattr(atomic, "write_whole", full)
      if bundles_too:
        monkeypatch.setattr(saver, "write_bundle", full)

  with pytest.raises(RunFailed, match=re.escape(message.format(tmp_path))):
    train(tmp_path, "train.steps = 2", "train.checkpoint_every = 2", step=Counter,
          before_call=before_call)
  assert store.steps_of(tmp_path / "checkpoints") == ([] if bundles_too else [2])


# ---- Between calls ------------------------------------------------------------------------------


class Assigned(tf.Module):
  """Returns what was assigned before the call, and its share of the global batch."""

  def __init__(self):
    super().__init__()
    self.value = tf.Variable(-1.0, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)

  def __call__(self) -> dict[str, tf.Tensor]:
    share = tf.constant(replicator.batch_size(), tf.int32)
    return {"value": self.value.read_value(), "share": share}

  def assign(self, step: int) -> None:
    self.value.assign(10.0 + step)


def test_before_every_call_variables_can_be_assigned_also_in_a_resumed_run(tmp_path):
  for steps in (4, 6):
    train(tmp_path, f"train.steps = {steps}", "train.steps_per_call = 2", "train.log_every = 2",
          "train.checkpoint_every = 2", *MIRRORED_2, step=Assigned, before_call=Assigned.assign)
  assert column(tmp_path, "value") == {2: 10.0, 4: 12.0, 6: 14.0}
  assert set(column(tmp_path, "share").values()) == {4}


def test_the_wait_for_data_is_that_since_the_last_log_point(tmp_path, monkeypatch, capsys):
  now, late = time.monotonic, []  # The first batch, and each call, seem to take 1,000 seconds.
  monkeypatch.setattr(time, "monotonic", lambda: now() + 1000 * len(late))

  def wait(number):
    if number == 0:
      late.append(number)
    return number

  train(tmp_path, "train.steps = 3", step=lambda: lambda batch: {"x": tf.reduce_mean(batch)},
        inputs=lambda context: tf.data.Dataset.range(3).map(
            lambda number: tf.fill([8], tf.numpy_function(wait, [number], tf.int64))),
        before_call=lambda *call: late.append(call))
  assert column(tmp_path, "data_wait") == pytest.approx({1: 0.5, 2: 0.0, 3: 0.0}, abs=0.05)
  assert "data wait 50%" in capsys.readouterr().out


def test_the_seconds_of_a_resumed_run_go_on(tmp_path, monkeypatch, capsys):
  now, calls = time.monotonic, []  # Each call seems to take 1,000 seconds.
  monkeypatch.setattr(time, "monotonic", lambda: now() + 1000 * len(calls))
  monkeypatch.setattr(journal, "Progress",
                      functools.partial(Progress, clock=lambda: 1000.0 * len(calls)))
  for steps in (2, 4):
    train(tmp_path, f"train.steps = {steps}", "train.checkpoint_every = 2", step=Assigned,
          before_call=lambda *call: calls.append(call))
  assert (tmp_path / "log.txt").read_text().count("\n--- 2") == 1  # It is appended to.
  assert {step: seconds // 1000 for step, seconds in column(tmp_path, "seconds").items()} == {
      1: 1, 2: 2, 3: 3, 4: 4}
  assert "step 3/4  0.001 steps/s" in capsys.readouterr().out  # Only its own steps count.
