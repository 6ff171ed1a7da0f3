"""An experiment by its command line: what it prints and writes, and how it begins and ends."""

import json
import re
import shlex
import sys

from replicator import UsageError
from replicator.errors import Preempted
from replicator.training import from_step, settings
from replicator.training.checkpoints import partial
from replicator.training.workdir import claim, lock
from tests.programs import two_networks
from tests.programs.logs import rows
from tests.programs.processes import forked, python
from tests.replicator.app.command_line import fails_with, flags, nothing, small

import gin
import pytest

# ---- How it begins ------------------------------------------------------------------------------


def test_bad_input_is_one_line_and_status_2_and_makes_no_workdir(run, tmp_path):
  (tmp_path / "a.gin").write_text("train.seed = 1\n")
  (tmp_path / "b.gin").write_text(
      "TwoNetworks.optimizer = @sgd\nsgd.learning_rate = @linear()\n"
      "linear.end = 5\nx/linear.initial = 0.1\ntrain.steps = 10\n")
  for argv, message in (
      (["--gin_param=train.stepps = 1"], "'train' has no parameter 'stepps'. Did you mean"),
      (flags("train.log_every = 0"), "train.log_every = 0: must be a whole number of at least 1"),
      (["--gin_file=a.gin"], "must set: train.steps; write train.steps = ... in a.gin, or with -"),
      (["--gin_file=b.gin"], "must set: linear.initial (b.gin:4 sets x/linear.initial "
                             "only); write linear.")):
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


def test_a_limit_of_steps_does_every_part_once_in_the_first_steps_of_the_whole_run(
    run, tmp_path, monkeypatch):
  monkeypatch.setattr(settings, "_most_steps", None)
  several = flags("train.steps_per_call = 5", "train.checkpoint_every = 10")
  status, _, err = run([*several, "--workdir=w", "--limit_steps=3"], small)
  assert (status, err) == (0, "")
  assert [row["step"] for row in rows(tmp_path / "w")] == [5]
  assert (tmp_path / "w/checkpoints/step-00000005").exists()
  assert "finished at step 5" in (tmp_path / "w/report.html").read_text()
  assert run([*several, "--workdir=w"], small)[0] == 0  # It goes on.
  assert rows(tmp_path / "w")[-1]["step"] == 10
  assert "'0': must be a number of steps" in run(["--limit_steps=0"], small)[2]


def test_processes_of_one_run_need_a_common_workdir(run, monkeypatch):
  monkeypatch.setenv("TF_CONFIG", "{}")
  status, _, err = run([], nothing)
  assert status == 2 and err.startswith("error: --workdir: ")
  assert run(["--workdir=w"], nothing)[0] == 0


@pytest.mark.parametrize("words, allowed", [([], []), (["--allow_partial_restore"], [True])])
def test_a_flag_lets_a_checkpoint_be_restored_in_part(words, allowed, run, monkeypatch):
  said = []
  monkeypatch.setattr(partial, "allow", said.append)
  assert run(["--workdir=w", *words], nothing) == (0, "", "")
  assert said == allowed


def test_a_step_to_go_back_to_is_of_a_run(run, monkeypatch):
  said = []
  monkeypatch.setattr(from_step, "go_on_from", said.append)
  assert run(["--workdir=w", "--from_step=400"], nothing) == (0, "", "")
  assert run(["--workdir=w"], nothing) == (0, "", "") and said == [400, None]
  assert run(["--from_step=400"], nothing)[2] == (
      "error: --from_step=400: goes back in a run; add its --workdir\n")
  assert "--from_step: '4e2': must be the step of a checkpoint" in run(
      ["--from_step=4e2"], nothing)[2]


# ---- How it ends --------------------------------------------------------------------------------


def test_a_traceback_that_cannot_be_written_hides_no_failure(run, tmp_path):
  (tmp_path / "w" / "traceback.txt").mkdir(parents=True)
  status, _, err = run(["--workdir=w"], fails_with(ZeroDivisionError()))
  assert status == 1 and err.endswith("ZeroDivisionError (--debug shows the traceback)\n")


def test_each_ending_has_its_status(run):
  assert run(["--workdir=w"], nothing) == (0, "", "")
  assert run(["--workdir=w"], fails_with(UsageError("x = 1: write 2"))) == (
      2, "", "error: x = 1: write 2\n")
  assert run(["--workdir=w"], fails_with(KeyboardInterrupt())) == (130, "", "error: interrupted\n")
  status, out, err = run(["--workdir=w"], fails_with(Preempted(7)))
  assert (status, err) == (42, "")
  assert out.startswith("stopped at step 7, checkpoint saved; to resume: python ")
  assert out.endswith(" --workdir=w\n")
  status, _, err = run(["--workdir=w", "--debug"], fails_with(ArithmeticError("of the user")))
  assert (status, err[:9]) == (1, "Traceback")
  assert err.splitlines()[-1].endswith("ArithmeticError: of the user")


def test_the_command_to_resume_is_the_one_that_was_typed_with_its_workdir(run, monkeypatch):
  monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
  monkeypatch.setattr(sys, "argv", ["my experiments/sngan.py"])
  for workdir, named in ((["--workdir", "w"], "w"), ([], r"runs/sngan-\d{8}-\d{6}")):
    argv = ["--gin_param=Checkpoints.keep_best = 'b c'", *workdir]
    _, out, _ = run(argv, fails_with(Preempted(7)))
    words = shlex.split(out.partition("to resume: ")[2])
    assert words[:2 + len(argv)] == ["python", "my experiments/sngan.py", *argv]
    assert re.fullmatch(f"(--workdir=)?{named}", words[-1])


# ---- As a user runs it --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
  """A run of 10 steps, without --workdir; and its workdir."""
  folder = tmp_path_factory.mktemp("folder")
  done = python("-m", "tests.programs.two_networks", *flags(), cwd=folder)
  (workdir,) = (folder / "runs").iterdir()
  return done, workdir


def test_a_run_ends_with_0_and_leaves_all_files_in_a_new_workdir(unbroken):
  done, workdir = unbroken
  assert done.stderr == ""  # TensorFlow prints nothing.
  assert re.fullmatch(r"two_networks-\d{8}-\d{6}", workdir.name)
  left = {path.name for path in workdir.iterdir()
          if "tfevents" not in path.name and path.name != "changes.diff"}
  assert left == {".owner", "checkpoints", "config.gin", "log.txt", "metrics.jsonl", "report.html",
                  "run.json", "samples"}
  assert len(list(workdir.glob("*tfevents*"))) == 1
  facts = json.loads((workdir / "run.json").read_text())
  assert facts["experiment"] == "two_networks"
  assert facts["command"] == shlex.join(["python", "-m", "tests.programs.two_networks", *flags()])
  lines = done.stdout.splitlines()
  assert lines[-1] == f"done: runs/{workdir.name}/report.html"
  assert any(line.startswith("step 10/10  ") for line in lines)


@pytest.mark.slow
def test_a_stopped_run_prints_the_command_that_resumes_it(unbroken, tmp_path):
  stopped = forked("-m", "tests.programs.two_networks", *flags("two_networks.stop_at = 5"),
                   cwd=tmp_path, status=42)
  assert stopped.stderr == ""
  last = stopped.stdout.splitlines()[-1]
  said = re.fullmatch("stopped at step 6, checkpoint saved; to resume: python (.*)", last)
  assert said
  resumed = forked(*shlex.split(said[1]), cwd=tmp_path)
  assert resumed.stderr == ""
  assert "resumed at step 6" in resumed.stdout.splitlines()
  (workdir,) = (tmp_path / "runs").iterdir()
  assert rows(workdir) == rows(unbroken[1])


# ---- In this process ----------------------------------------------------------------------------


@pytest.mark.parametrize("is_chief", [True, False])
def test_the_chief_is_refused_a_workdir_in_use_before_any_work(is_chief, run, tmp_path,
                                                               monkeypatch):
  monkeypatch.setattr(claim, "WAIT_SECONDS", 0.0)
  monkeypatch.setenv("TF_CONFIG", json.dumps({
      "cluster": {"chief": ["a:1"], "worker": ["b:1"]},
      "task": {"type": "chief" if is_chief else "worker", "index": 0}}))
  with lock.owned(tmp_path):
    status, _, err = run([f"--workdir={tmp_path}"],
                         fails_with(AssertionError("began")) if is_chief else nothing)
  assert (status, err.count("\n")) == ((2, 1) if is_chief else (0, 0))
  assert ("is in use by process" in err) == is_chief


def test_eager_steps_have_the_same_losses_and_may_read_them(run, unbroken, tmp_path, monkeypatch):
  seen = []
  compiled = two_networks.TwoNetworks.__call__

  def looking(self, batch):
    losses = compiled(self, batch)
    seen.append(losses["critic"].numpy())
    return losses

  monkeypatch.setattr(two_networks.TwoNetworks, "__call__", looking)
  status, _, err = run([*flags("train.steps_per_call = 5"), "--eager", "--workdir=eager"])
  assert (status, err, len(seen)) == (0, "", 10)
  for found, expected in zip(rows(tmp_path / "eager"), rows(unbroken[1]), strict=True):
    assert found == pytest.approx(expected, rel=1e-9)
