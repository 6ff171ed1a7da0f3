"""How an experiment begins and ends: its flags, its status, the line of a failure, the resuming."""

import json
import pathlib
import re
import shlex
import sys

import gin
import numpy as np
import pytest

from replicator import UsageError
from replicator.checkpoints import checkpoint
from replicator.errors import Preempted
from tests.replicator.app.command_line import fails_with, flags, line_of, nothing, small

# ---- How it begins ------------------------------------------------------------------------------


@pytest.mark.parametrize("lines, bindings, message", [
  ("train.seed = 1", [], "must set: train.steps; write train.steps = ... in a.gin, or with --gin_"),
  ("TwoNetworks.optimizer = @sgd\nsgd.learning_rate = @LinearDecay()\n"
   "LinearDecay.learning_rate = 0.1\nx/LinearDecay.updates = 5", ["train.steps = 10"],
   "must set: LinearDecay.updates (a.gin:4 sets x/LinearDecay.updates only); write LinearDecay."),
])
def test_a_missing_value_is_reported(lines, bindings, message, run, tmp_path):
  (tmp_path / "a.gin").write_text(lines + "\n")
  status, out, err = run(["--gin_file=a.gin", *(f"--gin_param={b}" for b in bindings),
                          "--workdir=w"])
  assert (status, out) == (2, "")
  assert err.startswith("error: the configuration ") and message in err and err.count("\n") == 1


def test_bad_input_is_one_line_and_status_2_and_makes_no_workdir(run, tmp_path):
  for argv, message in (
      (["--gin_param=train.stepps = 1"], "'train' has no parameter 'stepps'. Did you mean"),
      (flags("train.log_every = 0"), "train.log_every = 0: must be a whole number of at least 1")):
    status, out, err = run([*argv, "--workdir=w"])
    assert (status, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1 and message in err
  assert not (tmp_path / "w").exists()


def test_the_home_directory_may_be_written_as_a_tilde(run, tmp_path, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path / "home"))
  (tmp_path / "home").mkdir()
  (tmp_path / "home" / "a.gin").write_text("train.steps = 3\n")
  found = []
  main = lambda workdir: found.append((workdir, gin.query_parameter("train.steps")))
  assert run(["--workdir=~/w", "--gin_file=~/a.gin"], main) == (0, "", "")
  assert found == [(str(tmp_path / "home" / "w"), 3)]
  _, _, err = run(["--diff=~/w", "--gin_file=~/a.gin"], small)
  assert f"--diff={tmp_path / 'home' / 'w'}: " in err
  assert not list(tmp_path.glob("~*"))


def test_processes_of_one_run_need_a_common_workdir(run, monkeypatch):
  monkeypatch.setenv("TF_CONFIG", "{}")
  status, _, err = run([], nothing)
  assert status == 2 and err.startswith("error: --workdir: ")
  assert run(["--workdir=w"], nothing)[0] == 0


@pytest.mark.parametrize("words, allowed", [([], []), (["--allow_partial_restore"], [True])])
def test_a_flag_lets_a_checkpoint_be_restored_in_part(words, allowed, run, monkeypatch):
  said = []
  monkeypatch.setattr(checkpoint, "allow_partial_restore", said.append)
  assert run(["--workdir=w", *words], nothing) == (0, "", "")
  assert said == allowed


# ---- How it ends --------------------------------------------------------------------------------


@pytest.mark.parametrize("call, name", [
  (lambda: json.loads("{"), "JSONDecodeError"),  # Raises in a file of the standard library,
  (lambda: np.random.default_rng(-1), "ValueError")])  # and in one that is not there: compiled.
def test_a_failure_inside_a_library_names_the_users_line(call, name, run):
  def main(workdir):
    call()
  status, _, err = run(["--workdir=w"], main)
  assert status == 1
  lines = [line_of(f"lambda: {start}", pathlib.Path(__file__)) for start in ("json", "np.random")]
  assert re.search(f"{pathlib.Path(__file__).name}:({lines[0]}|{lines[1]}): {name}: ", err)
  assert "--debug" in err  # There is no workdir yet to keep a traceback in.


def test_a_traceback_that_cannot_be_written_hides_no_failure(run, tmp_path):
  (tmp_path / "w" / "traceback.txt").mkdir(parents=True)
  status, _, err = run(["--workdir=w"], fails_with(ZeroDivisionError()))
  assert status == 1 and err.endswith("ZeroDivisionError (--debug shows the traceback)\n")


def test_each_ending_has_its_status(run):
  assert run(["--workdir=w"], nothing) == (0, "", "")
  assert run(["--workdir=w"], fails_with(UsageError("x = 1: write 2"))) == (
      2, "", "error: x = 1: write 2\n")
  assert run(["--workdir=w"], fails_with(KeyboardInterrupt())) == (
      130, "", "error: interrupted\n")
  status, out, err = run(["--workdir=w"], fails_with(Preempted(7)))
  assert (status, err) == (42, "")
  assert out.startswith("stopped at step 7, which is saved; to resume: python ")
  assert out.endswith(" --workdir=w\n")
  status, _, err = run(["--workdir=w", "--debug"], fails_with(ArithmeticError("of the user")))
  assert (status, err[:9]) == (1, "Traceback")
  assert err.splitlines()[-1].endswith("ArithmeticError: of the user")


def test_the_command_to_resume_is_the_one_that_was_typed_with_its_workdir(run, monkeypatch):
  monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
  monkeypatch.setattr(sys, "argv", ["my experiments/sngan.py"])
  for workdir, named in ((["--workdir", "w"], "w"), ([], r"runs/sngan-\d{8}-\d{6}")):
    argv = ["--gin_param=TwoNetworks.fault = 'b c'", *workdir]
    _, out, _ = run(argv, fails_with(Preempted(7)))
    words = shlex.split(out.partition("to resume: ")[2])
    assert words[:2 + len(argv)] == ["python", "my experiments/sngan.py", *argv]
    assert re.fullmatch(f"(--workdir=)?{named}", words[-1])
