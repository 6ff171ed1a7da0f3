"""`--explain` and `--diff`: each value with its source, and what differs from an earlier run."""

import itertools
import re

from tests.programs.two_networks import two_networks
from tests.replicator.app.command_line import flags, small

import gin
import pytest


def table(out: str) -> dict[str, tuple[str, ...]]:
  """The columns of each line, by the first column."""
  return {name: tuple(rest) for name, *rest in (
      re.split(r"  +", line) for line in out.splitlines() if line)}


@pytest.fixture
def explained(run):
  """A function: what `--explain` prints of an experiment with some flags."""
  def explained(*words: str, main=small) -> str:
    status, out, err = run([*words, "--explain=all"], main)
    assert (status, err) == (0, "")
    return out
  return explained


def test_explain_prints_each_value_with_its_source_and_writes_nothing(explained, tmp_path):
  (tmp_path / "base.gin").write_text("RATE = 0.5\nTwoNetworks.optimizer = @adam\n"
                                     "sgd.learning_rate = %RATE\n")
  (tmp_path / "main.gin").write_text(
      "# Two lines of comment.\n\ninclude 'base.gin'\nTwoNetworks.optimizer = \\\n  @sgd\n"
      "Replicator.strategy = 'multi_worker_mirrored'\n")
  out = explained("--gin_file=main.gin", *flags("two_networks.stop_at = 3"), main=two_networks)
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
  assert sorted(path.name for path in tmp_path.iterdir()) == ["base.gin", "main.gin"]


def test_explain_prints_what_is_set_and_counts_the_rest(run, tmp_path):
  (tmp_path / "a.gin").write_text("RATE = 0.5\nsgd.learning_rate = %RATE\n"
                                  "critic/sgd.momentum = 0.5\n")
  words = ["--gin_file=a.gin", *flags("small_step.optimizer = @sgd")]
  (_, out, _), (_, everything, _) = (
      run([*words, flag], small) for flag in ("--explain", "--explain=all"))
  shown, _, rest = out.partition("\n\n")
  assert table(shown).keys() == {"critic/sgd.momentum", "sgd.learning_rate", "small_step.optimizer",
                                 "train.steps", *(name for name, row in table(everything).items()
                                                  if row[1:] == ("command line",))}
  assert table(shown)["sgd.learning_rate"] == ("0.5 (%RATE)", "a.gin:2")
  used = everything.partition("\nNot used to build the run")[0]
  defaults = sum(row[-1:] == ("default",) for row in table(used).values())
  assert int(rest.split()[0]) == defaults and "problem: " in rest


def test_explain_leaves_an_object_store_alone(explained, tmp_path):
  assert "train.steps" in explained(f"--workdir=file://{tmp_path}/store/run", *flags())
  assert not (tmp_path / "store").exists()


def test_explain_reports_values_without_effect(explained):
  out = explained(*flags("small_step.optimizer = @sgd", "critic/sgd.momentum = 0.5",
                         "rmsprop.rho = 0.5"))
  assert out.splitlines()[-1].startswith(
      "problem: --gin_param: critic/sgd.momentum is never used: sgd is not called in the scope "
      "'critic'.")
  _, _, others = out.partition("Not used to build the run")
  assert table(others)["rmsprop.rho"] == ("0.5", "command line")
  assert table(others)["critic/sgd.momentum"] == ("0.5", "command line")


def test_explain_prints_the_value_of_the_narrowest_scope_and_its_place(explained, tmp_path):
  (tmp_path / "a.gin").write_text(
      "a/rmsprop.rho = 0.25\nrmsprop.rho = 0.5\nrmsprop.momentum = 0.125\na/b/rmsprop.rho = 0.75\n")
  for number, name in enumerate(("b", "c", "d")):
    (tmp_path / f"{name}.gin").write_text(f"train.seed = {number}\n")
  rows = table(explained(*(f"--gin_file={name}.gin" for name in "abcd"), *flags()))
  assert rows["train.seed"] == ("2", "d.gin:1, over c.gin:1")
  assert rows["rmsprop.rho"] == ("0.5", "a.gin:2")
  assert rows["a/rmsprop.rho"] == ("0.25", "a.gin:1")
  assert rows["a/b/rmsprop.rho"] == ("0.75", "a.gin:4")
  assert rows["a/b/rmsprop.momentum"] == ("0.125", "a.gin:3")
  assert rows["small_step.after"] == ("identity", "default, unless the program sets it")
  assert rows["small_step.device"] == ("0", "default")


def test_explain_has_columns_that_one_long_text_does_not_widen(explained):
  scope = "/".join(["a_long_scope"] * 5)
  out = explained(*flags(f"small_step.note = '{'x' * 50}'", f"{scope}/rmsprop.rho = 0.5"))
  lines = out.splitlines()
  assert "train.seed".ljust(60) + "  " + "0".ljust(40) + "  default" in lines
  assert "small_step.note".ljust(60) + f"  '{'x' * 50}'  command line" in lines
  used = out.partition("\nNot used to build the run")[0].splitlines()
  groups = [name for name, _ in itertools.groupby(
      line.partition(" ")[0].rpartition(".")[0] for line in used)]
  # A blank line stands between two configurables, and only there.
  assert groups[1::2] == [""] * (len(groups) // 2)
  assert groups[::2] == sorted(groups[::2], key=str.lower)


def test_explain_traces_a_replica_that_spans_devices(explained):
  for devices, said in ((2, 0), (1, 1)):
    out = explained(*flags(f"Replicator.devices_per_replica = {devices}",
                           "Replicator.strategy = 'mirrored'", "small_step.device = 1"))
    assert out.count("problem: ") == said
    assert not said or re.fullmatch(  # The rest is printed all the same.
        r"problem: the step cannot be traced: \S+: logical_device\(1\): .*", out.splitlines()[-1])
    assert table(out)["Replicator.strategy"] == ("'mirrored'", "command line")


def test_explain_names_the_program_as_the_source_of_what_it_binds(explained, monkeypatch):
  hooks: list = []
  monkeypatch.setattr(gin.config, "_FINALIZE_HOOKS", hooks)
  gin.config.register_finalize_hook(lambda config: {"small_step.scale": 2.0})
  assert table(explained(*flags()))["small_step.scale"] == ("2.0", "the program")


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
