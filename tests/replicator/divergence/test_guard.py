"""The divergence guard: what a run does about numbers that are not finite, or above a limit."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import UsageError
from replicator.app import config
from replicator.checkpoints import checkpoint
from replicator.divergence.guard import Divergence, Guard
from replicator.divergence.recovery import Diverged, Recovery
from replicator.errors import RunFailed, first_line
from replicator.workdir.reader import TIMES
from tests.programs.fragile import BAD, Fragile, numbers

MIRRORED_2 = ("Replicator.strategy = 'mirrored'", "Replicator.logical_cpus = 2")
BATCH = 4  # The bad example is in step 6, of the second of two replicas.

pytestmark = pytest.mark.usefixtures("restored", "without_curves")

SETTINGS = [f"train.global_batch_size = {BATCH}", "train.steps = 12", "train.log_every = 1",
            "train.eval_every = 0", "train.checkpoint_every = 4"]


def train(workdir: pathlib.Path, *bindings: str, step=Fragile, inputs=numbers):
  config.parse([], [*SETTINGS, *bindings])
  return replicator.train(step, inputs, workdir=str(workdir))


def rows(workdir: pathlib.Path) -> list[dict]:
  """The metrics without the times."""
  lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  return [{name: value for name, value in line.items() if name not in TIMES} for line in lines]


def column(workdir: pathlib.Path, name: str) -> list[float]:
  return [row[name] for row in rows(workdir)]


def saved_steps(workdir: pathlib.Path) -> list[int]:
  return checkpoint.steps_of(workdir / "checkpoints")


# ---- Stop ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("where, offending", [
    ("loss", "loss"), ("gradients", "grad_norm/optimizer")])
@pytest.mark.parametrize("bindings", [
    (), ("train.steps_per_call = 4", "train.log_every = 4"), ("Replicator.jit_compile = True",),
    MIRRORED_2], ids=["one", "steps_per_call", "xla", "mirrored"])
def test_a_run_stops_at_the_first_step_that_is_not_finite(bindings, where, offending, tmp_path):
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


def test_a_failure_before_the_first_checkpoint_says_so(tmp_path):
  with pytest.raises(RunFailed, match="no checkpoint was saved before"):
    train(tmp_path, "train.checkpoint_every = 0")


def test_a_failure_that_cannot_be_written_still_stops_the_run(tmp_path):
  (tmp_path / "failures").write_text("in the way")
  with pytest.raises(RunFailed, match=r"step 6: loss is nan; .*could not be written \(Not a dir"):
    train(tmp_path)


# ---- What must not trip it ----------------------------------------------------------------------


def test_updates_that_are_skipped_by_design_pass(tmp_path):
  step = train(tmp_path, step=lambda: Fragile("gradients", skip_nonfinite=True))
  assert step.optimizer.nonfinite_updates.numpy() == 1
  norms = column(tmp_path, "grad_norm/optimizer")
  assert norms[5] == 0 and all(norm > 0 for i, norm in enumerate(norms) if i != 5)


def test_overflows_of_float16_pass(tmp_path):
  step = train(tmp_path, "train.precision = 'mixed_float16'", step=lambda: Fragile("gradients"))
  assert step.optimizer.nonfinite_updates.numpy() == 1


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


def test_a_stop_at_a_step_that_is_not_finite_saves_nothing(tmp_path):
  def ask(step, number):
    if number == 5:
      os.kill(os.getpid(), signal.SIGTERM)

  config.parse([], [*SETTINGS, "Guard.action = 'warn'"])
  with pytest.raises(RunFailed, match=(
      r"^stopped at step 6, which is not saved, since its numbers are not finite; the last good "
      "checkpoint is of step 4, from which Guard.action = 'roll_back' would go on")):
    replicator.train(Fragile, numbers, before_call=ask, workdir=str(tmp_path))
  assert saved_steps(tmp_path) == [4]


class Undefined(tf.Module):
  """Is NaN at every step."""

  def __call__(self):
    return {"loss": tf.constant(np.nan)}


@pytest.mark.parametrize("bindings", [(), ("train.steps_per_call = 2",)])
def test_a_warning_is_given_once_for_each_log_point(bindings, tmp_path, capsys):
  train(tmp_path, "Guard.action = 'warn'", "train.log_every = 4", "train.checkpoint_every = 0",
        *bindings, step=Undefined, inputs=None)
  lines = [line for line in capsys.readouterr().out.splitlines() if "is nan" in line]
  assert lines == [f"warning: step {step}: loss is nan" for step in (1, 5, 9)]


def test_a_guard_goes_on_from_its_state():
  def after(guard: Guard) -> Guard:
    other = Guard()
    other.restore(json.loads(json.dumps(guard.state())))
    return other

  divergence = Divergence(3, {"loss": np.nan}, {}, {})
  guard = Guard()
  assert guard.warning(divergence) == "warning: step 3: loss is nan"
  assert after(guard).warning(divergence) is None
  guard.at_log_point(4, {}, {})
  assert after(guard).warning(divergence) == "warning: step 3: loss is nan"


def test_a_failure_after_a_return_has_only_the_steps_since():
  guard = Guard()
  guard.divergence_in(1, history(loss=[1.0, 2.0]))
  assert guard.divergence_in(3, history(loss=[np.nan])).recent["loss"][:2].tolist() == [1.0, 2.0]
  assert not guard.is_sound
  guard.restore({})  # As a rollback to step 0 does, and a checkpoint of an earlier version.
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
  assert guard.suspicions_in(1, history(loss=[np.nan])) == []
  assert guard.at_log_point(1, {}, MAY_COLLAPSE) == []


class Alone:
  """The only process of a run."""

  worker_id, num_pipelines = 0, 1


@pytest.mark.parametrize("batches, files", [
    (np.arange(6.0).reshape(3, 2), {"batch": [2.0, 3.0]}),
    ({"pair": (np.arange(3.0), -np.arange(3.0))}, {"pair.0": 1.0, "pair.1": -1.0}),
    (None, None)])
def test_a_failure_says_which_data_came_after_the_skipped_ones(batches, files, tmp_path):
  recovery = Recovery(Guard(), Alone(), tmp_path, {"seed": 0, "global_batch_size": 4})
  recovery.rollbacks, recovery.skipped = 2, 3
  with pytest.raises(Diverged):
    recovery.check(4, history(loss=[1.0, np.inf, 1.0]), batches, pytest.fail)
  folder = tmp_path / "failures" / "step-00000006-rollback-2"
  facts = json.loads((folder / "failure.json").read_text())
  assert facts["data_positions"] == (files and [32, 36])  # The ninth batch.
  assert (facts["rollbacks"], facts["offending"]) == (2, {"loss": "Infinity"})
  assert (folder / "batch.npz").exists() == (files is not None)
  if files:
    with np.load(folder / "batch.npz") as batch:
      assert {name: batch[name].tolist() for name in batch.files} == files


# ---- Roll back ----------------------------------------------------------------------------------

ROLL_BACK = "Guard.action = 'roll_back'"


@pytest.mark.parametrize("bindings", [(), ("train.steps_per_call = 2", "train.log_every = 2"),
                                      MIRRORED_2], ids=["one", "steps_per_call", "mirrored"])
def test_a_run_goes_back_and_on_with_other_draws_and_data(bindings, tmp_path, capsys):
  train(tmp_path / "untroubled", "train.steps = 4", *bindings)
  train(tmp_path / "rolled back", ROLL_BACK, *bindings)
  assert "step 6: loss is nan; its batch and numbers are in" in (printed := capsys.readouterr().out)
  assert "rolled back to step 4, 1 of at most 3 times" in printed
  logged, untroubled = rows(tmp_path / "rolled back"), rows(tmp_path / "untroubled")
  every = logged[0]["step"]
  assert [row["step"] for row in logged] == list(range(every, 13, every))
  assert logged[:len(untroubled)] == untroubled  # Bit for bit.
  # After step 4 comes the batch that would have come after the bad one.
  first = [BATCH * s + 1.5 for s in range(4)] + [BATCH * (s + 6) + 1.5 for s in range(8)]
  assert [row["x"] for row in logged] == [np.mean(first[i:i + every])
                                          for i in range(0, 12, every)]
  train(tmp_path / "rerun", ROLL_BACK, *bindings)
  assert rows(tmp_path / "rerun") == logged


def test_after_a_rollback_the_draws_are_new(tmp_path):
  train(tmp_path / "as before", inputs=lambda context: numbers(context).map(
      lambda batch: {"x": -batch["x"]}))
  train(tmp_path / "rolled back", ROLL_BACK)
  expected, noise = (column(tmp_path / name, "noise") for name in ("as before", "rolled back"))
  assert noise[:4] == expected[:4]
  assert not set(noise[4:]) & set(expected)


def test_the_data_of_every_rollback_stay_behind(tmp_path):
  # Another bad example, in the batch after 36: what is step 8 after the first rollback.
  train(tmp_path, ROLL_BACK, inputs=lambda context: numbers(context).map(
      lambda batch: {"x": tf.where(batch["x"] == 38.0, BAD, batch["x"])}))
  assert column(tmp_path, "x") == [BATCH * batch + 1.5 for batch in (*range(4), *range(10, 18))]


@pytest.mark.parametrize("steps", [8, 5])
def test_a_rolled_back_run_resumes_exactly(steps, tmp_path):
  # 5 steps end in the part of the run that is undone later.
  train(tmp_path / "whole", ROLL_BACK)
  train(tmp_path / "resumed", ROLL_BACK, f"train.steps = {steps}")
  step = train(tmp_path / "resumed", ROLL_BACK)
  whole, resumed = rows(tmp_path / "whole"), rows(tmp_path / "resumed")
  if steps == 8:
    assert resumed == whole
  else:  # It went back to the checkpoint at its end, and passed over one batch only.
    assert [row["step"] for row in resumed] == list(range(1, 13))
    assert resumed[5]["x"] == 25.5
  assert np.isfinite(step.weights.numpy()).all()


class Hopeless(tf.Module):
  """Is infinite at its second step, whatever the draws."""

  def __call__(self):
    return {"loss": 1.0 / (1.0 - tf.cast(replicator.step_number(), tf.float32))}


def test_a_run_that_fails_again_and_again_is_stopped(tmp_path, capsys):
  with pytest.raises(RunFailed, match=(
      r"^step 2: loss is inf after 2 rollbacks; its numbers are in .*step-00000002-rollback-2; the "
      "last good checkpoint is of step 0")):
    train(tmp_path, ROLL_BACK, "Guard.max_rollbacks = 2", step=Hopeless, inputs=None)
  assert capsys.readouterr().out.count("rolled back to step 0") == 2
  assert sorted(path.name for path in (tmp_path / "failures").iterdir()) == [
      "step-00000002", "step-00000002-rollback-1", "step-00000002-rollback-2"]


def test_steps_that_overtake_each_other_are_not_rolled_back():
  guard = Guard(action="roll_back")
  guard.check_supported("mirrored")
  with pytest.raises(UsageError, match=r"^Guard.action = 'roll_back': under 'parameter_server'"):
    guard.check_supported("parameter_server")


# ---- Limits and collapse ------------------------------------------------------------------------


def history(**values: list[float]) -> dict[str, np.ndarray]:
  return {name.replace("__", "/"): np.array(series) for name, series in values.items()}


def test_a_limit_is_the_highest_value_that_passes():
  guard = Guard(limits={"d": 2.0, "grad_norm/g": 10})
  assert guard.divergence_in(1, history(d=[2.0, -9.0], grad_norm__g=[10.0, 1.0])) is None
  divergence = guard.divergence_in(3, history(d=[1.0, 2.5, 3.0], grad_norm__g=[1.0, 99.0, np.nan]))
  assert str(divergence) == "step 4: d is 2.5, over its limit of 2 (and 1 more)"
  assert divergence.offending == {"d": 2.5, "grad_norm/g": 99.0}
  assert divergence.recent["d"].tolist() == [2.0, -9.0, 1.0, 2.5]
  assert guard.is_sound is False  # In its last step, a gradient is NaN.


@pytest.mark.parametrize("kwargs, message", [
    ({"limits": {"grad_norm/generatr": 1.0}},
     "Guard.limits: the step logs no 'grad_norm/generatr'. Did you mean 'grad_norm/generator'? "
     "It logs: d, grad_norm/generator"),
    ({"limits": {"sigma/d": 1.0}, "signals": False},
     "Guard.limits: the step logs no 'sigma/d'. Set Guard.signals = True. It logs: d, "
     "grad_norm/generator")])
def test_a_limit_of_what_is_not_logged_is_refused(kwargs, message):
  with pytest.raises(UsageError) as caught:
    Guard(**kwargs).divergence_in(1, history(d=[1.0], grad_norm__generator=[1.0]))
  assert str(caught.value) == message


def test_a_limit_stops_a_run(tmp_path):
  with pytest.raises(RunFailed, match=r"^step 3: x is 9.5, over its limit of 9; its batch"):
    train(tmp_path, "Guard.limits = {'x': 9}")


@pytest.mark.parametrize("kwargs, message", [
    ({"action": "stopp"}, "'stopp': no such action. Did you mean 'stop'?"),
    ({"limits": ["d"]}, r"Guard.limits = \['d'\]: must be a dict"),
    ({"limits": {"d": "50"}}, r"\{'d': '50'\}: must be a number"),
    ({"limits": {"d": np.nan}}, "must be a number"),
    ({"max_rollbacks": -1}, "max_rollbacks = -1: must be a whole number"),
    ({"max_rollbacks": 1.5}, "max_rollbacks = 1.5: must be a whole number"),
    ({"limits": {"d": True}}, "must be a number"),
    ({"max_rollbacks": True}, "max_rollbacks = True: must be a whole number"),
    ({"collapse": 1}, r"collapse = 1: must be a fraction in \[0, 1\)"),
    ({"collapse": -0.1}, "must be a fraction"), ({"collapse": True}, "must be a fraction"),
    ({"collapse": 5}, r"collapse = 5: must be a fraction in \[0, 1\)")])
def test_settings_that_cannot_work_are_refused(kwargs, message):
  with pytest.raises(UsageError, match=message):
    Guard(**kwargs)
  Guard(limits={"d": np.inf, "g": 1}, max_rollbacks=0, collapse=0)  # The lowest and the highest.


MAY_COLLAPSE = {"mode collapse": ("sample_variance", "data_variance")}


@pytest.mark.parametrize("sample, data, collapse, warned", [
    (0.01, 1.0, 0.05, True), (0.05, 1.0, 0.05, False), (0.06, 1.0, 0.05, False),
    (0.0, 1.0, 0.0, False), (0.0, 0.0, 0.05, False), (np.nan, 1.0, 0.05, False)])
def test_the_guard_warns_of_samples_that_hardly_vary(sample, data, collapse, warned):
  means = {"sample_variance": sample, "data_variance": data}
  warnings = Guard(collapse=collapse).at_log_point(50, means, MAY_COLLAPSE)
  assert warnings == (["warning: step 50: mode collapse? sample_variance is 0.01, and "
                       "data_variance 1: less than Guard.collapse = 0.05 of it"] if warned else [])


def test_a_scalar_that_may_collapse_must_be_logged():
  with pytest.raises(UsageError, match=(
      r"^the step's may_collapse\['mode collapse'\]: the step logs no 'data_variance'. Did you "
      r"mean 'data_varianc'\? It logs: sample_variance, data_varianc$")):
    Guard().at_log_point(1, {"sample_variance": 1.0, "data_varianc": 1.0}, MAY_COLLAPSE)


def test_a_collapse_is_logged_once_until_the_samples_recover(tmp_path, capsys):
  def step():
    recovered = tf.cast(replicator.step_number() // 3 == 1, tf.float32)  # Steps 4 to 6.
    return {"sample_variance": 1e-3 + recovered, "data_variance": 0.5}
  step.may_collapse = MAY_COLLAPSE
  train(tmp_path, inputs=None, step=lambda: step)
  lines = [line for line in capsys.readouterr().out.splitlines() if "mode collapse" in line]
  assert [line.split(":")[1] for line in lines] == [" step 1", " step 7"]
  for steps in (4, 8, 10):  # A resumed run knows of it.
    train(tmp_path / "resumed", f"train.steps = {steps}", "train.checkpoint_every = 2", inputs=None,
          step=lambda: step)
  lines = [line for line in capsys.readouterr().out.splitlines() if "mode collapse" in line]
  assert [line.split(":")[1] for line in lines] == [" step 1", " step 7"]


# ---- Several processes --------------------------------------------------------------------------


@pytest.mark.parametrize("worker, files", [(0, {"batch-worker-0.npz", "failure.json"}),
                                           (1, {"batch-worker-1.npz"})])
def test_each_worker_leaves_its_part_of_the_failed_batch_beside_the_others(worker, files, tmp_path):
  class Worker:
    """One of two processes."""
    worker_id, num_pipelines = worker, 2

  recovery = Recovery(Guard(), Worker(), tmp_path, {"seed": 0, "global_batch_size": 4})
  batches = {"x": np.arange(6.0).reshape(3, 2)}  # Three steps in one call.
  with pytest.raises(Diverged, match="step 6: loss is nan; its batch and numbers are in"):
    recovery.check(4, history(loss=[1.0, np.nan, 1.0]), batches, pytest.fail)
  folder = tmp_path / "failures" / "step-00000006"
  assert {path.name for path in folder.iterdir()} == files
  with np.load(folder / f"batch-worker-{worker}.npz") as batch:
    assert batch["x"].tolist() == [2.0, 3.0]


def launch(workdir: pathlib.Path, arguments: list[str], *bindings: str, program: str = "fragile"
           ) -> tuple[int, str]:
  done = subprocess.run(
      [sys.executable, "-m", "replicator.launch", *arguments, "--", sys.executable, "-m",
       f"tests.programs.{program}", f"--workdir={workdir}",
       *(f"--gin_param={binding}" for binding in [*SETTINGS, *bindings])],
      cwd=pathlib.Path(__file__).parents[3], capture_output=True, text=True, timeout=300,
      check=False)
  return done.returncode, done.stdout + done.stderr


MULTI_WORKER = "Replicator.strategy = 'multi_worker_mirrored'"


@pytest.mark.slow
def test_all_workers_stop_at_the_same_step_and_leave_their_part_of_the_batch(tmp_path):
  status, printed = launch(tmp_path, ["--workers=2"], MULTI_WORKER)
  assert status == 1
  for worker in (0, 1):
    assert f"[worker {worker}] error: step 6: loss is nan; its batch and numbers are in" in printed
    with np.load(tmp_path / "failures" / "step-00000006" / f"batch-worker-{worker}.npz") as batch:
      assert batch["x"].tolist() == [20 + 2 * worker, 21 + 2 * worker]
  assert saved_steps(tmp_path) == [4]


@pytest.mark.slow
def test_all_workers_go_back_together(tmp_path):
  train(tmp_path / "one process", ROLL_BACK)
  status, printed = launch(tmp_path / "two", ["--workers=2"], MULTI_WORKER, ROLL_BACK)
  assert status == 0, printed
  for row, expected in zip(rows(tmp_path / "two"), rows(tmp_path / "one process"), strict=True):
    assert row == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_all_workers_go_back_to_a_checkpoint_that_is_still_being_written(tmp_path):
  status, printed = launch(tmp_path, ["--workers=2"], MULTI_WORKER, ROLL_BACK,
                           program="slow_writer")
  assert status == 0, printed
  assert "rolled back to step 4" in printed
  assert [row["step"] for row in rows(tmp_path)] == list(range(1, 13))


@pytest.mark.slow
@pytest.mark.parametrize("action", ["stop", "warn", "roll_back"])
def test_asynchronous_steps_are_looked_at(action, tmp_path):
  status, printed = launch(tmp_path, ["--workers=2", "--ps=1"], f"Guard.action = '{action}'",
                        "Replicator.strategy = 'parameter_server'")
  if action == "stop":
    assert status == 1
    assert "error: step 6: loss is nan; its batch and numbers are in" in printed
    with np.load(tmp_path / "failures" / "step-00000006" / "batch.npz") as batch:
      assert batch["x"].tolist() == [20, 21, 22, 23]
  elif action == "warn":
    assert status == 0
    assert printed.count("warning: step 6: loss is nan") == 1
  else:
    assert status == 2
    assert "error: Guard.action = 'roll_back': under 'parameter_server' steps overtake" in printed
