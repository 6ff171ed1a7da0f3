"""A step that failed, run once more by `replicator replay`."""

import pathlib
import re

from tests.programs.processes import forked

import numpy as np
import pytest

SETTINGS = ["train.steps = 12", "train.global_batch_size = 4", "train.checkpoint_every = 4",
            "train.eval_every = 4", "train.log_every = 1"]


def fail(workdir: pathlib.Path, *bindings: str, status: int = 1) -> None:
  """A run whose step 6 is not finite."""
  forked("-m", "tests.programs.fragile", f"--workdir={workdir}",
         *(f"--gin_param={binding}" for binding in [*SETTINGS, *bindings]), status=status)


def replay(workdir: pathlib.Path, *flags: str, status: int = 0) -> list[str]:
  done = forked("-m", "replicator", "replay", workdir, *flags, status=status)
  # How long something takes is said now and then.
  return [line for line in (done.stdout + done.stderr).splitlines()
          if not re.search(r": \d+s$", line)]


@pytest.fixture(scope="module")
def failed(tmp_path_factory) -> pathlib.Path:
  workdir = tmp_path_factory.mktemp("failed")
  fail(workdir, "train.steps_per_call = 2", "train.log_every = 2")
  return workdir


def test_the_first_operation_that_is_not_finite_is_named_with_its_line(failed):
  before = sorted(failed.rglob("*"))
  lines = replay(failed, "--yes")
  assert lines[:5] == [
      "failed      step 6: loss is nan",
      "recent      loss " + lines[1].removeprefix("recent      loss "),
      "trained     from step 4 to step 5, on one device",
      "batch       x float32 [4], from 20 to 23",
      "before      all variables are finite"]
  assert lines[1].endswith(", nan") and lines[1].count(",") == 5
  assert lines[5] == "returned    loss nan" and "in the run" not in "".join(lines)
  source = pathlib.Path("tests/programs/fragile.py").read_text().splitlines()
  number = 1 + next(i for i, line in enumerate(source) if "tf.where(is_bad, np.nan" in line)
  (first,) = [line for line in lines if line.startswith("first ")]
  assert re.fullmatch(rf"first +SelectV2 has 1 NaN in \[\], at tests/programs/fragile.py:{number}",
                      first)
  assert [line.split()[1:] for line in lines if line.startswith("given ")] == [
      [f"{number}:", f"tf.Tensor({value},", "shape=(),", f"dtype={dtype})"]
      for number, (value, dtype) in enumerate([("True", "bool"), ("nan", "float32"),
                                               ("0.0", "float32")])]
  assert sorted(failed.rglob("*")) == before


def test_a_program_that_is_no_experiment_is_not_run_unread(failed):
  assert "names the program `-m tests.programs.fragile`" in replay(failed, status=2)[-1]


def test_a_step_that_did_not_fail_is_one_line(failed):
  assert replay(failed, "--yes", "--step=5", status=2)[-1] == (
      "error: --step=5: did not fail; choose one of the steps 6")


@pytest.mark.slow
def test_gradients_of_two_replicas_and_a_run_that_went_on(tmp_path):
  fail(tmp_path, "Fragile.where = 'gradients'", "Guard.action = 'roll_back'",
       "Replicator.strategy = 'mirrored'", "Replicator.logical_cpus = 2", status=0)
  lines = replay(tmp_path, "--yes")
  assert lines[0] == "failed      step 6: grad_norm/optimizer is nan"
  assert "trained     from step 4 to step 5, on one device" in lines
  assert any(line.startswith("first       ") and "fragile.py" in line for line in lines)
  assert "returned    grad_norm/optimizer nan" in lines


@pytest.mark.slow
def test_other_data_do_not_fail(tmp_path):
  fail(tmp_path)
  batch = tmp_path / "failures" / "step-00000006" / "batch.npz"
  np.savez(batch, x=np.zeros([4], np.float32))
  lines = replay(tmp_path, "--yes", status=1)
  (returned,) = [line for line in lines if line.startswith("returned    loss")]
  assert returned.endswith(", but nan in the run")
  assert "first       every operation has a finite result" in lines
