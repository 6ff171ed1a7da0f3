"""The flags of an experiment, and values that are missing or that nothing uses."""

import gin
import pytest

from replicator.checkpoints import checkpoint
from tests.replicator.app.command_line import flags, nothing, small


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


def test_a_value_that_nothing_uses_ends_the_run_with_2_and_one_line(run, tmp_path):
  (tmp_path / "a.gin").write_text("small_step.optimizer = @sgd\n\ncritic/sgd.momentum = 0.5\n")
  status, _, err = run(["--gin_file=a.gin", *flags(), "--workdir=w"], small)
  assert status == 2
  assert err == ("error: a.gin:3: critic/sgd.momentum is never used: sgd is not called in the "
                 "scope 'critic'. It is called outside of any scope\n")
  assert not list((tmp_path / "w").glob("checkpoints/*"))


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
