"""The divergence guard: numbers not finite or beyond a limit, and samples that collapse."""

import json
import os
import re
import signal
import time

import replicator
from replicator import UsageError, atomic
from replicator.app import config
from replicator.errors import RunFailed, first_line
from replicator.training.divergence.guard import Guard
from tests.programs.fragile import Fragile, numbers
from tests.programs.logs import rows
from tests.replicator.training.divergence.runs import (
  MAY_COLLAPSE,
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

# ---- Stop ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("where, offending, bindings", [
    ("loss", "loss", ("train.steps_per_call = 4", "train.log_every = 4")),
    ("gradients", "grad_norm/optimizer", ("Replicator.jit_compile = True",)),
    ("gradients", "grad_norm/optimizer", MIRRORED_2)], ids=["steps_per_call", "xla", "mirrored"])
def test_a_run_stops_at_the_first_step_that_is_not_finite(where, offending, bindings, tmp_path):
  with pytest.raises(RunFailed) as caught:
    train(tmp_path, *bindings, step=lambda: Fragile(where))
  folder = tmp_path / "failures" / "step-00000006"
  assert first_line(caught.value) == (
      f"step 6: {offending} is nan; its batch and numbers are in {folder}; the last good "
      "checkpoint is from step 4, from which Guard.action = 'roll_back' would continue")
  assert sorted(path.name for path in folder.iterdir()) == ["batch.npz", "failure.json"]
  with np.load(folder / "batch.npz") as batch:
    assert batch.files == ["x"]
    np.testing.assert_array_equal(batch["x"], [20, 21, 22, 23])
  facts = json.loads((folder / "failure.json").read_text())
  assert {name: facts[name] for name in ("step", "seed", "rollbacks", "data_positions")} == {
      "step": 6, "seed": 0, "rollbacks": 0, "data_positions": [20, 24]}
  assert facts["offending"] == {offending: "NaN"}
  assert list(facts["recent"]) == ["loss", "noise", "x", "grad_norm/optimizer"]
  assert facts["recent"]["x"] == [1.5, 5.5, 9.5, 13.5, 17.5, 21.5]
  assert json.loads((tmp_path / "run.json").read_text())["ended"] == (
      f"failed: {first_line(caught.value)}")
  # What is logged and saved is from before: a call of 4 steps ends where a save is due.
  assert saved_steps(tmp_path) == [4]
  assert all(np.isfinite(value) for row in rows(tmp_path) for value in row.values())


def test_a_failure_before_the_first_checkpoint_that_cannot_be_written_stops_the_run_too(tmp_path):
  (tmp_path / "failures").write_text("in the way")
  with pytest.raises(RunFailed, match=(r"step 6: loss is nan; .*could not be written \(Not a dir.*"
                                       "there is no earlier checkpoint")):
    train(tmp_path, "train.checkpoint_every = 0")


# ---- What must not trip it ----------------------------------------------------------------------


@pytest.mark.parametrize("options, bindings", [
    ({"skip_nonfinite": True}, ()), ({}, ("train.precision = 'mixed_float16'",))])
def test_updates_that_are_skipped_by_design_pass(options, bindings, tmp_path):
  step = train(tmp_path, *bindings, step=lambda: Fragile("gradients", **options))
  assert step.optimizer.nonfinite_updates.numpy() == 1
  norms = column(tmp_path, "grad_norm/optimizer")
  assert norms[5] == 0 and all(norm > 0 for i, norm in enumerate(norms) if i != 5)


@pytest.mark.parametrize("binding", ["Guard.action = 'off'", "Guard.action = 'warn'"])
def test_a_run_continues_if_that_is_configured(binding, tmp_path, capsys):
  train(tmp_path, binding, "train.log_every = 6")
  assert column(tmp_path, "loss")[0] == "NaN" and np.isfinite(column(tmp_path, "loss")[1])
  assert not (tmp_path / "failures").exists()
  printed = capsys.readouterr().out
  assert printed.count("warning: step 6: loss is nan") == ("warn" in binding)
  assert saved_steps(tmp_path) == [4, 8, 12]  # The weights are sound.


def test_a_warned_run_keeps_its_last_good_checkpoint(tmp_path, capsys):
  train(tmp_path, "Guard.action = 'warn'", "train.log_every = 12",
        step=lambda: Fragile("gradients"))
  printed = capsys.readouterr().out
  assert printed.count("warning: step 6: grad_norm/optimizer is nan") == 1
  assert "warning: step 8: not saved, since its numbers are not finite" in printed
  assert saved_steps(tmp_path) == [4]


def test_a_stop_at_a_step_that_is_not_finite_saves_nothing(tmp_path, monkeypatch):
  def ask(step, number):
    if number == 5:
      os.kill(os.getpid(), signal.SIGTERM)

  def publish_late(*arguments):  # The checkpoint is named although it is still being written.
    time.sleep(0.3)
    publish(*arguments)

  publish = atomic.publish
  monkeypatch.setattr(atomic, "publish", publish_late)
  config.parse([], [*SETTINGS, "Guard.action = 'warn'"])
  with pytest.raises(RunFailed, match=(
      r"^stopped at step 6, which is not saved, since its numbers are not finite; the last good "
      "checkpoint is from step 4, from which Guard.action = 'roll_back' would continue")):
    replicator.train(Fragile, numbers, before_call=ask, workdir=str(tmp_path))
  assert saved_steps(tmp_path) == [4]


@pytest.mark.parametrize("ended_at", [5, 3])
def test_a_rollback_may_need_a_checkpoint_that_was_saved_at_an_end(ended_at, tmp_path, capsys):
  bindings = ["train.checkpoint_every = 100", "train.steps_per_call = 1"]
  train(tmp_path, f"train.steps = {ended_at}", *bindings)
  train(tmp_path, *bindings, ROLL_BACK)
  assert f"rolled back to step {ended_at}, 1 of at most 3 times" in capsys.readouterr().out
  assert [row["step"] for row in rows(tmp_path)] == list(range(1, 13))


def test_the_step_to_which_a_rollback_would_return_is_named_if_it_is_not_the_last(tmp_path):
  train(tmp_path, "train.steps = 5")
  with pytest.raises(RunFailed, match=(
      r"last good checkpoint is from step 5; Guard.action = 'roll_back' would continue from step 4"
  )):
    train(tmp_path)


def test_an_agent_acts_with_no_weights_that_the_guard_has_not_seen(tmp_path, capsys):
  def act(step, number):
    assert np.isfinite(step.weights).all()

  config.parse([], [*SETTINGS, ROLL_BACK, "train.log_every = 12", "train.steps = 12"])
  replicator.train(lambda: Fragile("gradients"), numbers, before_call=act, workdir=str(tmp_path))
  assert "rolled back to step 4" in capsys.readouterr().out


def test_a_warning_is_given_once_for_each_log_point(tmp_path, capsys):
  train(tmp_path, "Guard.action = 'warn'", "train.log_every = 4", "train.checkpoint_every = 0",
        "train.steps_per_call = 2", inputs=None,
        step=lambda: lambda: {"loss": tf.constant(np.nan)})
  lines = [line for line in capsys.readouterr().out.splitlines() if "is nan" in line]
  assert lines == [f"warning: step {step}: loss is nan" for step in (1, 5, 9)]


def test_a_divergence_remembers_twenty_steps_and_what_is_new():
  guard = Guard()
  for first in range(1, 31, 2):
    assert guard.divergence_in(first, history(loss=[first, first + 1.0])) is None
  found = guard.divergence_in(31, history(loss=[31.0, np.nan, 33.0], new=[0.5, 1.5, 2.5]))
  assert found.step == 32
  assert found.recent["loss"][:-1].tolist() == [float(step) for step in range(13, 32)]
  assert found.recent["new"].tolist() == [0.5, 1.5]


# ---- Limits, and samples that collapse -----------------------------------------------------------


def test_a_limit_is_the_highest_value_that_passes():
  guard = Guard(limits={"d": 2.0, "grad_norm/g": 10})
  assert guard.divergence_in(1, history(d=[2.0, -9.0], grad_norm__g=[10.0, 1.0])) is None
  divergence = guard.divergence_in(3, history(d=[1.0, 2.5, 3.0], grad_norm__g=[1.0, 99.0, np.nan]))
  assert str(divergence) == "step 4: d is 2.5, over its limit of 2 (and 1 more)"
  assert divergence.offending == {"d": 2.5, "grad_norm/g": 99.0}
  assert divergence.recent["d"].tolist() == [2.0, -9.0, 1.0, 2.5]
  assert guard.is_sound is False  # In its last step, a gradient is NaN.


def test_a_size_that_only_a_broken_run_reaches_is_over_the_limit_of_all_others():
  guard = Guard(limits={"flops": 1e30})
  assert guard.divergence_in(1, history(
      loss=[9e18, -9e18], count=[1.7e9, 1.7e18], flops=[-1e20, 1e30])) is None
  for value, words in [(2e21, "2e+21"), (-2e21, "-2e+21")]:
    assert str(guard.divergence_in(3, history(loss=[1.0, value]))) == (
        f"step 4: loss is {words}, beyond 1e+19, the limit for scalars that are not in "
        "Guard.limits")
    assert guard.is_sound  # It is finite.


@pytest.mark.parametrize("binding, message", [
    ("Guard.action = 'stopp'", "must be one of 'stop', 'warn', .* Did you mean 'stop'?"),
    ("Guard.max_rollbacks = -1", "must be at least 0"),
    ("Guard.collapse = 1", r"must be a fraction in \[0, 1\)"),
    ("Guard.collapse = -0.1", "must be a fraction")])
def test_settings_that_cannot_work_are_refused(tmp_path, binding, message):
  with pytest.raises(UsageError, match=f"{re.escape(binding)}: {message}"):
    train(tmp_path, binding, step=pytest.fail)
  Guard(limits={"d": np.inf, "g": 1}, max_rollbacks=0, collapse=0)  # The lowest and the highest.


def test_the_guard_warns_of_samples_that_hardly_vary_any_more():
  for above, is_fall in [(1.0, True), (0.05, True), (0.049, False), (np.nan, False)]:
    guard = Guard()
    warnings = [guard.at_log_point(
        step, {"sample_variance": sample, "data_variance": 1.0}, MAY_COLLAPSE)
                for step, sample in enumerate([0.01, above, np.nan, 0.01, 0.01])]
    assert list(map(len, warnings)) == [0, 0, 0, is_fall, 0]
  for sample, data, collapse in [(0.01, 1.0, 0.05), (0.05, 1.0, 0.05), (0.06, 1.0, 0.05),
                                 (0.0, 1.0, 0.0), (0.0, 0.0, 0.05), (np.nan, 1.0, 0.05)]:
    means = {"sample_variance": sample, "data_variance": data}
    guard = Guard(collapse=collapse)
    guard.at_log_point(40, {"sample_variance": 1.0, "data_variance": 1.0}, MAY_COLLAPSE)
    assert guard.at_log_point(50, means, MAY_COLLAPSE) == [
        "warning: step 50: mode collapse? sample_variance fell below Guard.collapse = 0.05 of "
        "data_variance: 0.01 of 1"] * (sample == 0.01)


def test_a_scalar_that_may_collapse_must_be_logged():
  with pytest.raises(UsageError, match=(
      r"^the step's may_collapse\['mode collapse'\]: the step does not log 'data_variance'. Did "
      r"you mean 'data_varianc'\? It logs: sample_variance, data_varianc$")):
    Guard().at_log_point(1, {"sample_variance": 1.0, "data_varianc": 1.0}, MAY_COLLAPSE)


def test_a_collapse_is_logged_once_until_the_samples_recover(tmp_path, capsys):
  def step():
    varies = tf.cast(replicator.step_number() // 3 % 2, tf.float32)  # Steps 4 to 6, 10 to 12.
    return {"sample_variance": 1e-3 + varies, "data_variance": 0.5}
  step.may_collapse = MAY_COLLAPSE
  train(tmp_path, "train.steps = 15", inputs=None, step=lambda: step)
  lines = [line for line in capsys.readouterr().out.splitlines() if "mode collapse" in line]
  assert [line.split(":")[1] for line in lines] == [" step 7", " step 13"]
