"""The command line of an experiment: what it prints, which files it writes, and how it ends."""

import importlib.machinery
import itertools
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
from collections.abc import Callable

import gin
import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import UsageError, app
from replicator.checkpoints import checkpoint
from replicator.console import quiet, start
from replicator.errors import Preempted
from replicator.workdir import owner
from replicator.workdir.reader import TIMES
from tests.programs import two_networks

ROOT = pathlib.Path(__file__).parents[3]
PROGRAM = pathlib.Path(two_networks.__file__)
SETTING = ["train.steps = 10", "train.global_batch_size = 8", "train.log_every = 5",
           "train.eval_every = 5", "train.precision = 'float64'"]


def flags(*bindings: str) -> list[str]:
  return [f"--gin_param={binding}" for binding in [*SETTING, *bindings]]


def rows(workdir: pathlib.Path) -> list[dict]:
  """The logged rows, without the times."""
  lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  return [{k: v for k, v in line.items() if k not in TIMES} for line in lines]


def line_of(code: str, file: pathlib.Path) -> int:
  return 1 + next(i for i, line in enumerate(file.read_text().splitlines()) if code in line)


# ---- As a user runs it --------------------------------------------------------------------------


def run_program(*words: str, cwd: pathlib.Path) -> subprocess.CompletedProcess:
  # A user's environment: no log level, and the package is installed.
  inherited = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
  return subprocess.run([sys.executable, *words], cwd=cwd, capture_output=True, text=True,
                        timeout=300, env={**inherited, "PYTHONPATH": str(ROOT)}, check=False)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
  """A run of 10 steps, without --workdir; and where it was started."""
  folder = tmp_path_factory.mktemp("folder")
  return run_program("-m", "tests.programs.two_networks", *flags(), cwd=folder), folder


@pytest.fixture(scope="module")
def unbroken_rows(unbroken) -> list[dict]:
  _, folder = unbroken
  (workdir,) = (folder / "runs").iterdir()
  return rows(workdir)


def test_a_run_ends_with_0_and_leaves_all_files_in_a_new_workdir(unbroken):
  done, folder = unbroken
  assert done.returncode == 0
  assert done.stderr == ""  # TensorFlow prints nothing.
  (workdir,) = (folder / "runs").iterdir()
  assert re.fullmatch(r"two_networks-\d{8}-\d{6}", workdir.name)
  left = {path.name for path in workdir.iterdir()
          if "tfevents" not in path.name and path.name != "changes.diff"}
  assert left == {".owner", "checkpoints", "config.gin", "metrics.jsonl", "report.html",
                  "run.json", "samples"}
  assert len(list(workdir.glob("*tfevents*"))) == 1
  facts = json.loads((workdir / "run.json").read_text())
  assert facts["experiment"] == "two_networks"
  assert facts["command"] == shlex.join(
      ["python", "-m", "tests.programs.two_networks", *flags()])
  lines = done.stdout.splitlines()
  assert lines[-1] == f"done: runs/{workdir.name}/report.html"
  assert any(line.startswith("step 10/10  ") for line in lines)


@pytest.mark.slow
def test_a_stopped_run_prints_the_command_that_resumes_it(unbroken_rows, tmp_path):
  stopped = run_program("-m", "tests.programs.two_networks", *flags("two_networks.stop_at = 5"),
                        cwd=tmp_path)
  assert (stopped.returncode, stopped.stderr) == (42, "")
  last = stopped.stdout.splitlines()[-1]
  said = re.fullmatch("stopped at step 6, which is saved; to resume: python (.*)", last)
  assert said
  resumed = run_program(*shlex.split(said[1]), cwd=tmp_path)
  assert (resumed.returncode, resumed.stderr) == (0, "")
  assert "resumed at step 6" in resumed.stdout.splitlines()
  (workdir,) = (tmp_path / "runs").iterdir()
  assert rows(workdir) == unbroken_rows


def test_a_failed_run_ends_with_1_and_one_line(tmp_path):
  failed = run_program("-m", "tests.programs.two_networks", "--workdir=w",
                       *flags("TwoNetworks.fault = 'trace'"), cwd=tmp_path)
  assert failed.returncode == 1
  where = f"{os.path.relpath(PROGRAM, tmp_path)}:{line_of('raise Arith', PROGRAM)}"
  assert failed.stderr == (f"error: {where}: ArithmeticError: of the user; "
                           "the traceback is in w/traceback.txt\n")


# ---- In this process ----------------------------------------------------------------------------


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
  """A function: runs `main` with some flags; returns status, stdout and stderr."""
  monkeypatch.setattr(start, "begin", lambda argv: None)  # The first lines have their own tests.
  monkeypatch.setattr(quiet, "drop_native_log", lambda: None)
  monkeypatch.setattr(quiet, "finish", lambda: None)
  monkeypatch.chdir(tmp_path)
  monkeypatch.delenv("TF_CONFIG", raising=False)

  def run(argv: list[str], main=two_networks.two_networks):
    with pytest.raises(SystemExit) as ended:
      app.run(main, argv)
    out, err = capsys.readouterr()
    return ended.value.code, out, err

  yield run
  tf.config.run_functions_eagerly(False)
  gin.clear_config()
  keras.config.set_floatx("float32")
  keras.config.set_dtype_policy("float32")


def nothing(workdir: str) -> None:
  """An experiment that does nothing."""


def fails_with(error: BaseException):
  def main(workdir):
    raise error
  return main


@pytest.mark.parametrize("kind, index, is_chief", [
    (None, 0, True), ("chief", 0, True), ("worker", 0, False), ("worker", 1, False),
    ("ps", 0, False)])
def test_a_workdir_in_use_is_refused_before_any_work(kind, index, is_chief, run, tmp_path,
                                                     monkeypatch):
  monkeypatch.setattr(owner, "WAIT_SECONDS", 0.0)
  if kind:
    monkeypatch.setenv("TF_CONFIG", json.dumps({
        "cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]},
        "task": {"type": kind, "index": index}}))
  with owner.owned(tmp_path):
    status, _, err = run([f"--workdir={tmp_path}"],
                         fails_with(AssertionError("began")) if is_chief else nothing)
  assert status == (2 if is_chief else 0)
  assert ("is in use by process" in err) == is_chief
  assert err.count("\n") == is_chief


def test_no_other_process_begins_between_the_check_and_the_training(run, tmp_path, monkeypatch):
  monkeypatch.setattr(owner, "WAIT_SECONDS", 0.0)
  with owner.owned(tmp_path):
    pass

  def main(workdir):
    with pytest.raises(UsageError, match="is in use by process"), owner.reserved(tmp_path):
      pass
    replicator.train(two_networks.TwoNetworks, two_networks.Points(), workdir=workdir)

  assert run([*flags("train.steps = 5"), f"--workdir={tmp_path}"], main)[0] == 0
  with owner.reserved(tmp_path):  # It is free again.
    pass


def test_eager_steps_have_the_same_losses(run, unbroken_rows, tmp_path):
  status, _, err = run([*flags(), "--eager", "--workdir=eager"])
  assert (status, err) == (0, "")
  for found, expected in zip(rows(tmp_path / "eager"), unbroken_rows, strict=True):
    assert found == pytest.approx(expected, rel=1e-9)


def test_an_eager_step_may_read_its_values(run):
  seen = []

  class Looking(two_networks.TwoNetworks):
    def __call__(self, batch):
      losses = super().__call__(batch)
      seen.append(losses["critic"].numpy())
      return losses

  def main(workdir):
    replicator.train(Looking, two_networks.Points(), workdir=workdir)

  status, _, err = run([*flags("train.steps_per_call = 5"), "--eager", "--workdir=w"], main)
  assert (status, err) == (0, "")
  assert len(seen) == 10


def table(out: str) -> dict[str, tuple[str, ...]]:
  """The columns of each line, by the first column."""
  return {name: tuple(rest) for name, *rest in (
      re.split(r"  +", line) for line in out.splitlines() if line)}


def test_explain_prints_each_value_with_its_source_and_writes_nothing(run, tmp_path):
  (tmp_path / "base.gin").write_text("RATE = 0.5\nTwoNetworks.optimizer = @adam\n"
                                     "sgd.learning_rate = %RATE\n")
  (tmp_path / "main.gin").write_text(
      "# Two lines of comment.\n\ninclude 'base.gin'\nTwoNetworks.optimizer = \\\n  @sgd\n"
      "Replicator.strategy = 'multi_worker_mirrored'\n")
  status, out, err = run(["--gin_file=main.gin", *flags("two_networks.stop_at = 3"), "--explain"])
  assert (status, err) == (0, "")
  rows = table(out)
  assert rows["train.steps"] == ("10", "command line")
  assert rows["train.seed"] == ("0", "default")
  assert rows["TwoNetworks.optimizer"] == ("@sgd", "main.gin:4, over base.gin:2")
  assert rows["TwoNetworks.critic_width"] == ("1", "default")
  assert rows["sgd.learning_rate"] == ("0.5 (%RATE)", "base.gin:3")
  assert rows["sgd.momentum"] == ("0.0", "default")
  assert rows["wrap_optimizer.ema_start"] == ("0", "default")
  assert rows["two_networks.stop_at"] == ("3", "command line")
  # The values of the run, although the explanation traces on one device.
  assert rows["Replicator.strategy"] == ("'multi_worker_mirrored'", "main.gin:6")
  assert rows["Replicator.logical_cpus"] == ("None", "default")
  assert "\x1b" not in out and "problem" not in out
  used, _, others = out.partition("Not used to build the run")
  assert "wrap_optimizer" in used and "adam.beta_1" not in out and "microbatch.n" in others
  columns = {line.index(row[-1]) for line in used.splitlines() if line
             for row in [re.split(r"  +", line)]}
  assert len(columns) == 1
  assert sorted(path.name for path in tmp_path.iterdir()) == ["base.gin", "main.gin"]


@gin.configurable
def small_step(scale: float = 1.0, optimizer: Callable[[], object] | None = None,
               device: int = 0, after: Callable = tf.identity, note: str = "") -> Callable:
  """Makes a step without networks."""
  rate = float(optimizer().learning_rate) if optimizer else 1.0

  def step() -> dict[str, tf.Tensor]:
    with replicator.logical_device(device):
      return {"loss": after(tf.constant(scale * rate))}

  return step


def small(workdir: str) -> None:
  """Trains the step."""
  replicator.train(small_step, workdir=workdir)


def test_explain_reports_values_without_effect(run):
  status, out, err = run([*flags("small_step.optimizer = @sgd", "critic/sgd.momentum = 0.5",
                                 "rmsprop.rho = 0.5"), "--explain"], small)
  assert (status, err) == (0, "")
  assert out.splitlines()[-1].startswith(
      "problem: --gin_param: critic/sgd.momentum is never used: sgd is not called in the scope "
      "'critic'.")
  _, _, others = out.partition("Not used to build the run")
  assert table(others)["rmsprop.rho"] == ("0.5", "command line")
  assert table(others)["critic/sgd.momentum"] == ("0.5", "command line")


def test_explain_prints_the_value_of_the_narrowest_scope_and_its_place(run, tmp_path):
  (tmp_path / "a.gin").write_text(
      "a/rmsprop.rho = 0.25\nrmsprop.rho = 0.5\nrmsprop.momentum = 0.125\na/b/rmsprop.rho = 0.75\n")
  for number, name in enumerate(("b", "c", "d")):
    (tmp_path / f"{name}.gin").write_text(f"train.seed = {number}\n")
  files = [f"--gin_file={name}.gin" for name in "abcd"]
  status, out, err = run([*files, *flags(), "--explain"], small)
  assert (status, err) == (0, "")
  rows = table(out)
  assert rows["train.seed"] == ("2", "d.gin:1, over c.gin:1")
  assert rows["rmsprop.rho"] == ("0.5", "a.gin:2")
  assert rows["a/rmsprop.rho"] == ("0.25", "a.gin:1")
  assert rows["a/b/rmsprop.rho"] == ("0.75", "a.gin:4")
  assert rows["a/b/rmsprop.momentum"] == ("0.125", "a.gin:3")
  assert rows["small_step.after"] == ("identity", "default, unless the program gives one")
  assert rows["small_step.device"] == ("0", "default")


def test_explain_has_columns_that_one_long_text_does_not_widen(run):
  scope = "/".join(["a_long_scope"] * 5)
  status, out, err = run([*flags(f"small_step.note = '{'x' * 50}'", f"{scope}/rmsprop.rho = 0.5"),
                          "--explain"], small)
  assert (status, err) == (0, "")
  lines = out.splitlines()
  assert "train.seed".ljust(60) + "  " + "0".ljust(40) + "  default" in lines
  assert "small_step.note".ljust(60) + f"  '{'x' * 50}'  command line" in lines
  used = out.partition("\nNot used to build the run")[0].splitlines()
  groups = [line.partition(" ")[0].rpartition(".")[0] for line in used]
  assert "" in groups  # A blank line stands between two configurables, and only there.
  assert all("" in pair or pair[0] == pair[1] for pair in itertools.pairwise(groups))
  assert len(set(groups) - {""}) == groups.count("") + 1
  assert list(filter(None, dict.fromkeys(groups))) == sorted(
      set(groups) - {""}, key=lambda name: name.lower())


def test_explain_traces_a_replica_that_spans_devices(run):
  for devices, said in ((2, 0), (1, 1)):
    status, out, err = run([*flags(f"Replicator.devices_per_replica = {devices}",
                                   "Replicator.strategy = 'mirrored'", "small_step.device = 1"),
                            "--explain"], small)
    assert (status, err) == (0, "") and out.count("problem: ") == said
    assert table(out)["Replicator.strategy"] == ("'mirrored'", "command line")


def test_explain_names_the_program_as_the_source_of_what_it_binds(run, monkeypatch):
  hooks: list = []
  monkeypatch.setattr(gin.config, "_FINALIZE_HOOKS", hooks)
  gin.config.register_finalize_hook(lambda config: {"small_step.scale": 2.0})
  status, out, err = run([*flags(), "--explain"], small)
  assert (status, err) == (0, "")
  assert table(out)["small_step.scale"] == ("2.0", "the program")


def test_explain_of_a_step_that_cannot_be_traced_prints_the_rest(run):
  status, out, err = run([*flags("TwoNetworks.fault = 'trace'"), "--explain"])
  assert (status, err) == (0, "")
  assert table(out)["TwoNetworks.fault"] == ("'trace'", "command line")
  assert out.splitlines()[-1] == "problem: the step cannot be traced: of the user"


def test_diff_prints_what_differs_from_an_earlier_run(run, tmp_path):
  (tmp_path / "w").mkdir()
  optimizer = ("small_step.optimizer = @rmsprop", "rmsprop.rho = 0.5")
  assert run([*flags(*optimizer), "--workdir=w"], small)[0] == 0
  assert run(["--gin_file=w/config.gin", "--diff=w"], small) == (0, "no value differs from w\n", "")
  status, out, err = run(["--gin_file=w/config.gin", "--gin_param=train.steps = 20",
                          "--gin_param=small_step.optimizer = @sgd", "--diff=w/config.gin"], small)
  assert (status, err) == (0, "")
  rows = table(out)
  assert rows[""] == ("here", "w/config.gin")
  assert rows["train.steps"] == ("20", "10")
  assert len({line.index(row[-1]) for line in out.splitlines()
              for row in [re.split(r"  +", line)]}) == 1  # The columns are straight.
  assert rows["small_step.optimizer"] == ("@sgd", "@rmsprop")
  assert rows["sgd.momentum"] == ("0.0", "--") and rows["rmsprop.momentum"] == ("--", "0.0")
  assert "train.seed" not in rows and "small_step.scale" not in rows
  (tmp_path / "w" / "config.gin").write_text("train.steps = = 1\n")
  for run_name, reason in (("nowhere", "no such file"), ("w", "not valid gin")):
    status, out, err = run([*flags(), f"--diff={run_name}"])
    assert (status, out) == (2, "") and err.count("\n") == 1
    assert err.startswith(f"error: --diff={run_name}: ") and reason in err


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
  (tmp_path / "a.gin").write_text("TwoNetworks.optimizer = @sgd\n\ncritic/sgd.momentum = 0.5\n")
  status, _, err = run(["--gin_file=a.gin", *flags(), "--workdir=w"])
  assert status == 2
  assert err == ("error: a.gin:3: critic/sgd.momentum is never used: sgd is not called in the "
                 "scope 'critic'. It is called outside of any scope\n")
  assert not list((tmp_path / "w").glob("checkpoints/*"))


def test_help_ends_with_0(run):
  status, out, err = run(["--help"])
  assert (status, err) == (0, "")
  for flag in ("--gin_file", "--gin_param", "--workdir", "--eager", "--explain", "--diff",
               "--debug"):
    assert flag in out


def test_files_and_parameters_come_in_their_order(run, tmp_path):
  (tmp_path / "1.gin").write_text("train.steps = 1\ntrain.seed = 1\ntrain.log_every = 1\n")
  (tmp_path / "2.gin").write_text("train.steps = 2\ntrain.seed = 2\n")
  found = {}
  def main(workdir):
    found.update({name: gin.query_parameter(f"train.{name}")
                  for name in ("steps", "seed", "log_every")}, workdir=workdir)
  argv = ["--gin_param", "train.steps = 3", "--gin_file", "1.gin", "--gin_file=2.gin",
          "--workdir", "w"]
  assert run(argv, main)[0] == 0
  assert found == {"steps": 3, "seed": 2, "log_every": 1, "workdir": "w"}


@pytest.mark.parametrize("argv, message", [
  (["--gin_fil=a.gin"], "unrecognized arguments: --gin_fil=a.gin. Did you mean '--gin_file'?"),
  (["--eagre"], "unrecognized arguments: --eagre. Did you mean '--eager'?"),
  (["--work", "w"], "Did you mean '--workdir'?"),
  (["configs/sngan.gin"], "unrecognized arguments: configs/sngan.gin"),
  (["--gin_param"], "argument --gin_param: expected one argument"),
  (["--gin_file=nowhere.gin"], "--gin_file=nowhere.gin: no such file"),
  (["--gin_param=train.stepps = 1"], "'train' has no parameter 'stepps'. Did you mean 'steps'?"),
  (["--gin_param=train.steps = = 1"], "not valid gin: train.steps = = 1"),
  (["--gin_param=train.seed = 1"], "must set: train.steps"),
  (flags("train.log_every = 0"), "train.log_every = 0: must be a whole number of at least 1"),
  (flags("Replicator.strategy = 'mirored'"), "no such strategy. Did you mean 'mirrored'?"),
  ([*flags(), "--workdir=a_file"], "a_file"),
])
def test_bad_input_is_one_line_and_status_2(argv, message, run, tmp_path):
  (tmp_path / "a_file").write_text("")
  status, out, err = run(argv if "--workdir=a_file" in argv else [*argv, "--workdir=w"])
  assert (status, out) == (2, "")
  assert err.startswith("error: ") and err.count("\n") == 1 and err.endswith("\n")
  assert message in err
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


def test_debug_shows_the_traceback_of_bad_input(run):
  argv = [*flags("train.log_every = 0"), "--workdir=w"]
  status, _, err = run([*argv, "--debug"])
  assert status == 2
  assert err.startswith("Traceback") and "in _check_settings" in err
  assert err.splitlines()[-1] == (
      "error: train.log_every = 0: must be a whole number of at least 1")


@pytest.mark.parametrize("fault, code", [
  ("trace", 'raise ArithmeticError("of the user")'),  # When the step is traced,
  ("run", "return tf.debugging.check_numerics"),      # and when the compiled step runs.
])
def test_a_failing_step_names_the_line_and_keeps_the_traceback(fault, code, run, tmp_path):
  status, _, err = run([*flags(f"TwoNetworks.fault = '{fault}'"), "--workdir=w"])
  assert status == 1
  assert err.startswith("error: ") and err.count("\n") == 1
  assert f"{PROGRAM.name}:{line_of(code, PROGRAM)}: " in err
  assert "of the user" in err
  assert err.endswith("; the traceback is in w/traceback.txt\n")
  kept = (tmp_path / "w" / "traceback.txt").read_text()
  assert kept.startswith("Traceback") and "of the user" in kept


def test_debug_shows_the_traceback_of_a_failure(run, tmp_path):
  status, _, err = run([*flags("TwoNetworks.fault = 'trace'"), "--workdir=w", "--debug"])
  assert status == 1
  assert err.startswith("Traceback")
  assert err.splitlines()[-1].endswith("ArithmeticError: of the user")


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


def test_a_failure_without_a_message_shows_its_type(run):
  status, _, err = run(["--workdir=w"], fails_with(ZeroDivisionError()))
  assert status == 1 and "ZeroDivisionError" in err


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


@pytest.mark.parametrize("spec, program", [
  (importlib.machinery.ModuleSpec("experiments.sngan", None), ["-m", "experiments.sngan"]),
  (None, ["my experiments/sngan.py"])])  # A file that was run by its name.
def test_the_command_to_resume_is_the_one_that_was_typed(spec, program, run, monkeypatch):
  monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
  monkeypatch.setattr(sys, "argv", ["my experiments/sngan.py"])
  argv = ["--gin_param=TwoNetworks.fault = 'b c'", "--workdir", "w"]
  _, out, _ = run(argv, fails_with(Preempted(7)))
  assert shlex.split(out.partition("to resume: ")[2]) == ["python", *program, *argv]


def test_the_command_to_resume_names_a_new_workdir(run):
  argv = ["--gin_param=train.precision = 'float64'"]
  _, out, _ = run(argv, fails_with(Preempted(7)))
  *_, binding, workdir = shlex.split(out.partition("to resume: ")[2])
  assert binding == argv[0]
  assert re.fullmatch(r"--workdir=runs/.*-\d{8}-\d{6}", workdir)
