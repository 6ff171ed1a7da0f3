"""The files that a failure leaves, how a run goes back and on, and that all processes do."""

import gc
import json
import pathlib
import types

import replicator
from replicator import UsageError
from replicator.app import config
from replicator.errors import RunFailed
from replicator.training.divergence.guard import Guard
from replicator.training.divergence.rollback import Diverged, Rollback
from replicator.training.inputs.inputs import InputContext
from replicator.training.inputs.pipeline import elements
from tests.programs.fragile import BAD, Fragile, numbers
from tests.programs.logs import rows
from tests.programs.processes import launched
from tests.replicator.training.divergence.runs import (
  BATCH,
  MIRRORED_2,
  ROLL_BACK,
  SETTINGS,
  column,
  history,
  saved_steps,
  train,
)

import numpy as np
import pytest
import tensorflow as tf

# ---- Where its data goes on ---------------------------------------------------------------------


def iterators() -> int:
  """The number of iterators of data sets that are in memory."""
  return sum(issubclass(type(thing), tf.data.Iterator) for thing in gc.get_objects())


@pytest.mark.slow
def test_no_iterator_is_left_to_the_collector(tmp_path):
  # The collector may run in a thread that makes an example. The iterator's end would wait for it.
  alive: list[int] = []

  def before_call(step: Fragile, number: int) -> None:
    alive.append(iterators())
    if number == 11:
      raise ValueError("an end")

  config.parse([], [*SETTINGS, ROLL_BACK])
  gc.collect()
  gc.disable()
  try:
    with pytest.raises(ValueError, match="an end") as kept:  # It keeps the frames of the run.
      replicator.train(Fragile, numbers, before_call=before_call, workdir=str(tmp_path))
    assert kept.tb and iterators() == 0
  finally:
    gc.enable()
  assert len(alive) > 12 and max(alive) == 1  # It was rolled back.


def test_no_iterator_is_left_in_an_error_of_the_data():
  torn = tf.data.Dataset.range(1, -1, -1).map(lambda x: 1 // x)
  gc.collect()
  with pytest.raises(tf.errors.InvalidArgumentError, match="zero") as kept:
    list(elements(torn))
  assert kept.tb and iterators() == 0


# ---- What a failure leaves ----------------------------------------------------------------------


@pytest.mark.parametrize("worker, workers, batches, files", [
    (0, 1, np.arange(6.0).reshape(3, 2), {"batch": [2.0, 3.0]}),
    (0, 1, {"pair": (np.arange(3.0), -np.arange(3.0))}, {"pair.0": 1.0, "pair.1": -1.0}),
    (0, 1, {"file": np.arange(3.0)}, {"file_": 1.0}),  # `file` is an argument of np.savez.
    (0, 1, None, None),
    (0, 2, np.arange(3.0), {"batch": 1.0}),
    (1, 2, np.arange(3.0), {"batch": 1.0})])
def test_a_failure_leaves_the_batch_of_every_worker_and_which_data_it_was(
    worker, workers, batches, files, tmp_path):
  replicator = types.SimpleNamespace(worker_id=worker, num_pipelines=workers)
  rollback = Rollback(Guard(), replicator, tmp_path, InputContext(2, batches=2))
  rollback.rollbacks, rollback.skipped = 2, 3
  with pytest.raises(Diverged):
    rollback.check(4, history(loss=[1.0, np.inf, 1.0]), batches, pytest.fail)
  folder = tmp_path / "failures" / "step-00000006-rollback-2"
  batch = "batch.npz" if workers == 1 else f"batch-worker-{worker}.npz"
  assert {path.name for path in folder.iterdir()} == {
      *([batch] if files else []), *(["failure.json"] if worker == 0 else [])}
  if worker == 0:
    facts = json.loads((folder / "failure.json").read_text())
    assert facts["data_positions"] == (files and [32, 36])  # The ninth batch.
    assert (facts["rollbacks"], facts["offending"]) == (2, {"loss": "Infinity"})
  if files:
    with np.load(folder / batch) as found:
      assert {name: found[name].tolist() for name in found.files} == files


# ---- Roll back ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rolled_back(tmp_path_factory) -> pathlib.Path:
  """A run that went back from step 6 to step 4, and on to its end."""
  workdir = tmp_path_factory.mktemp("rolled_back")
  train(workdir, ROLL_BACK)
  return workdir


# After step 4 comes the batch that would have come after the bad one.
SEEN = [BATCH * s + 1.5 for s in (*range(4), *range(6, 14))]


def test_a_run_goes_back_and_on_with_other_draws_and_data(rolled_back, tmp_path):
  train(tmp_path, inputs=lambda context: numbers(context).map(
      lambda batch: {"x": tf.where(batch["x"] == BAD, -BAD, batch["x"])}))
  logged, untroubled = rows(rolled_back), rows(tmp_path)
  assert [row["step"] for row in logged] == list(range(1, 13))
  assert logged[:4] == untroubled[:4]  # Bit for bit.
  assert column(rolled_back, "x") == SEEN
  assert not set(column(rolled_back, "noise")[4:]) & set(column(tmp_path, "noise"))


def test_replicas_go_back_together_in_a_call_of_several_steps(tmp_path, capsys):
  train(tmp_path, ROLL_BACK, "train.steps_per_call = 2", "train.log_every = 2", *MIRRORED_2)
  assert "step 6: loss is nan; its batch and numbers are in" in (printed := capsys.readouterr().out)
  assert "rolled back to step 4, 1 of at most 3 times" in printed
  assert column(tmp_path, "x") == np.reshape(SEEN, [6, 2]).mean(1).tolist()


def test_calls_that_cannot_start_where_the_run_goes_back_to(tmp_path):
  train(tmp_path, ROLL_BACK, "train.steps = 4", "train.checkpoint_every = 3")
  with pytest.raises(RunFailed, match=(
      r"^step 6: loss is nan; its batch and numbers are in .*step-00000006; "
      r"train.steps_per_call = 2: does not divide step 3, where the run resumes")):
    train(tmp_path, ROLL_BACK, "train.steps_per_call = 2", "train.log_every = 2")


def test_the_data_of_every_rollback_stay_behind(tmp_path):
  # Another bad example, in the batch after 36: what is step 8 after the first rollback.
  train(tmp_path, ROLL_BACK, inputs=lambda context: numbers(context).map(
      lambda batch: {"x": tf.where(batch["x"] == 38.0, BAD, batch["x"])}))
  assert column(tmp_path, "x") == [BATCH * batch + 1.5 for batch in (*range(4), *range(10, 18))]
  facts = json.loads((tmp_path / "failures/step-00000008-rollback-1/failure.json").read_text())
  assert facts["recent"]["x"][:-1] == [25.5, 29.5, 33.5]  # None of what was undone.


@pytest.mark.parametrize("steps", [8, 5])
def test_a_rolled_back_run_resumes_exactly(steps, rolled_back, tmp_path):
  # 5 steps end in the part of the run that is undone later, by a rollback to step 4.
  train(tmp_path, ROLL_BACK, f"train.steps = {steps}", "Checkpoints.keep_last = 1")
  assert saved_steps(tmp_path) == [4, 5] if steps == 5 else [8]
  step = train(tmp_path, ROLL_BACK)
  assert rows(tmp_path) == rows(rolled_back)
  assert np.isfinite(step.weights.numpy()).all()


def test_a_run_that_fails_again_and_again_is_stopped(tmp_path, capsys):
  # It is infinite at its second step, whatever the draws.
  step = lambda: {"loss": 1.0 / (1.0 - tf.cast(replicator.step_number(), tf.float32))}
  with pytest.raises(RunFailed, match=(
      r"^step 2: loss is inf after 2 rollbacks; its numbers are in .*step-00000002-rollback-2; the "
      "last good checkpoint is from step 0")):
    train(tmp_path, ROLL_BACK, "Guard.max_rollbacks = 2", step=lambda: step, inputs=None)
  assert capsys.readouterr().out.count("rolled back to step 0") == 2
  assert sorted(path.name for path in (tmp_path / "failures").iterdir()) == [
      "step-00000002", "step-00000002-rollback-1", "step-00000002-rollback-2"]


def test_steps_that_overtake_each_other_are_not_rolled_back():
  guard = Guard(action="roll_back")
  guard.check_supported("mirrored")
  with pytest.raises(UsageError, match=r"^Guard.action = 'roll_back': under 'parameter_server'"):
    guard.check_supported("parameter_server")


# ---- Several processes --------------------------------------------------------------------------


@pytest.mark.slow
def test_all_workers_stop_at_the_same_step_and_leave_their_part_of_the_batch(tmp_path):
  done = launched(["--workers=2"], "tests.programs.fragile", f"--workdir={tmp_path}", status=1,
                  bindings=[*SETTINGS, "Replicator.strategy = 'multi_worker_mirrored'"])
  for worker in (0, 1):
    assert (f"[worker {worker}] error: step 6: loss is nan; its batch and numbers are in"
            in done.stdout + done.stderr)
    with np.load(tmp_path / "failures" / "step-00000006" / f"batch-worker-{worker}.npz") as batch:
      assert batch["x"].tolist() == [20 + 2 * worker, 21 + 2 * worker]
  assert saved_steps(tmp_path) == [4]


@pytest.mark.slow
def test_asynchronous_steps_are_looked_at(tmp_path):
  done = launched(["--workers=2", "--ps=1"], "tests.programs.fragile", f"--workdir={tmp_path}",
                  status=1, bindings=[*SETTINGS, "Replicator.strategy = 'parameter_server'"])
  assert ("error: step 6: loss is nan; its batch and numbers are in" in done.stdout + done.stderr)
  with np.load(tmp_path / "failures" / "step-00000006" / "batch.npz") as batch:
    assert batch["x"].tolist() == [20, 21, 22, 23]
