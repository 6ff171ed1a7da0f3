"""The divergence guard: what a run does about numbers that are not finite."""

import json
import os
import signal
import time

import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import atomic
from replicator.app import config
from replicator.divergence.guard import Guard
from replicator.errors import RunFailed, first_line
from tests.programs.fragile import Fragile, numbers
from tests.programs.logs import rows
from tests.replicator.divergence.runs import (
  MAY_COLLAPSE,
  MIRRORED_2,
  SETTINGS,
  column,
  history,
  saved_steps,
  train,
)

pytestmark = pytest.mark.usefixtures("restored", "without_curves")


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
      "checkpoint is of step 4, from which Guard.action = 'roll_back' would go on")
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
  # What is logged and saved is from before.
  assert saved_steps(tmp_path) == [4]
  assert all(np.isfinite(value) for row in rows(tmp_path) for value in row.values())


def test_no_poisoned_checkpoint_replaces_a_good_one(tmp_path):
  # The guard looks at results before the save that is due at the same step.
  with pytest.raises(RunFailed, match=r"step 6: .* the last good checkpoint is of step 4"):
    train(tmp_path, "train.checkpoint_every = 2", "train.log_every = 12")
  assert saved_steps(tmp_path) == [2, 4]


def test_a_failure_before_the_first_checkpoint_that_cannot_be_written_stops_the_run_too(tmp_path):
  (tmp_path / "failures").write_text("in the way")
  with pytest.raises(RunFailed, match=(r"step 6: loss is nan; .*could not be written \(Not a dir.*"
                                       "no checkpoint was saved before")):
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
      "checkpoint is of step 4, from which Guard.action = 'roll_back' would go on")):
    replicator.train(Fragile, numbers, before_call=ask, workdir=str(tmp_path))
  assert saved_steps(tmp_path) == [4]


def test_a_warning_is_given_once_for_each_log_point(tmp_path, capsys):
  train(tmp_path, "Guard.action = 'warn'", "train.log_every = 4", "train.checkpoint_every = 0",
        "train.steps_per_call = 2", inputs=None,
        step=lambda: lambda: {"loss": tf.constant(np.nan)})
  lines = [line for line in capsys.readouterr().out.splitlines() if "is nan" in line]
  assert lines == [f"warning: step {step}: loss is nan" for step in (1, 5, 9)]


def test_a_failure_after_a_return_has_only_the_steps_since():
  guard = Guard()
  guard.divergence_in(1, history(loss=[1.0, 2.0]))
  assert guard.divergence_in(3, history(loss=[np.nan])).recent["loss"][:2].tolist() == [1.0, 2.0]
  assert not guard.is_sound
  guard.forget()
  assert guard.is_sound
  guard.divergence_in(1, history(loss=[3.0]))
  assert guard.divergence_in(2, history(loss=[np.inf])).recent["loss"].tolist() == [3.0, np.inf]


def test_a_divergence_remembers_twenty_steps_and_what_is_new():
  guard = Guard()
  for first in range(1, 31, 2):
    assert guard.divergence_in(first, history(loss=[first, first + 1.0])) is None
  found = guard.divergence_in(31, history(loss=[31.0, np.nan, 33.0], new=[0.5, 1.5, 2.5]))
  assert found.step == 32
  assert found.recent["loss"][:-1].tolist() == [float(step) for step in range(13, 32)]
  assert found.recent["new"].tolist() == [0.5, 1.5]


def test_a_guard_that_is_off_looks_at_nothing():
  guard = Guard("off", limits={"gone": 1.0})
  guard.check_limits(["loss"])
  assert guard.divergence_in(1, history(loss=[np.nan])) is None
  assert guard.at_log_point(1, {}, MAY_COLLAPSE) == []
