"""A run that goes on from an earlier checkpoint with other settings, and what it leaves behind."""

import json
import pathlib
import shutil
from collections.abc import Iterator

import replicator
from replicator import UsageError
from replicator.errors import Preempted
from replicator.training import from_step
from replicator.training.checkpoints import store
from replicator.training.workdir import reader
from tests.programs.logs import rows
from tests.programs.processes import launched
from tests.programs.refusals import refusal
from tests.replicator.training import runs
from tests.replicator.training.runs import SMALL

import gin
import keras
import numpy as np
import pytest
import tensorflow as tf

SETTINGS = ["train.steps = 12", "train.log_every = 2", "train.eval_every = 2",
            "train.checkpoint_every = 2", "Checkpoints.keep_last = 9"]
SLOWER = "Fit.rate = 0.02"


@gin.configurable
class Fit(tf.Module):
  """Fits a line to noise, with momentum."""

  def __init__(self, rate: float = 0.1):
    super().__init__()
    self.net = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    self.optimizer = replicator.wrap_optimizer(
        keras.optimizers.SGD(rate, momentum=0.9), self.net.trainable_variables)

  def __call__(self) -> dict[str, tf.Tensor]:
    x = replicator.random.normal("x", [4, 2])
    return {"loss": self.optimizer.minimize(
        lambda x: tf.reduce_mean(tf.square(self.net(x) - tf.reduce_sum(x, 1, True))), x)}


def evaluate(step: Fit) -> replicator.Evaluation:
  kernel = step.net.layers[0].kernel.numpy()
  return replicator.Evaluation({"kernel": kernel[0, 0]}, {"samples": np.clip(np.abs(
      kernel @ kernel.T), 0, 1)})


def train(workdir: pathlib.Path, *bindings: str, back_to: int | None = None, **options):
  from_step.go_on_from(back_to)
  try:
    return runs.train(workdir, *SETTINGS, *bindings, step=Fit, evaluate=evaluate, **options)
  finally:
    from_step.go_on_from(None)


def values(workdir: pathlib.Path) -> dict[str, np.ndarray]:
  return store.read(workdir / "checkpoints")


def images(workdir: pathlib.Path) -> dict[str, bytes]:
  return {path.name: path.read_bytes() for path in (workdir / "samples").iterdir()}


def assert_same_run(one: pathlib.Path, other: pathlib.Path) -> None:
  """Two workdirs have the same parameters, logs and images, bit for bit."""
  mine, others = values(one), values(other)
  assert mine.keys() == others.keys()
  for path, value in mine.items():
    np.testing.assert_array_equal(value, others[path], err_msg=path)
  assert rows(one) == rows(other)
  assert images(one) == images(other)


def aside(workdir: pathlib.Path) -> list[pathlib.Path]:
  return sorted((workdir / "set_aside").iterdir())


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> pathlib.Path:
  """A run of 12 steps."""
  train(workdir := tmp_path_factory.mktemp("first"))
  return workdir


@pytest.fixture(scope="module")
def unbroken(first, tmp_path_factory) -> pathlib.Path:
  """The same run, which has gone back to step 4 and on to step 12 with a smaller rate."""
  workdir = tmp_path_factory.mktemp("unbroken") / "run"
  train(shutil.copytree(first, workdir), SLOWER, back_to=4)
  return workdir


@pytest.fixture
def run(first, tmp_path) -> Iterator[pathlib.Path]:
  """A copy of the run of 12 steps."""
  yield shutil.copytree(first, tmp_path / "run")


def test_it_is_the_run_that_was_stopped_at_that_step(run, first, unbroken):
  for step in (6, 8, 10, 12):
    shutil.rmtree(store.folder_of(run / "checkpoints", step))
  train(run, SLOWER)
  assert_same_run(run, unbroken)
  assert rows(unbroken)[:3] == rows(first)[:3] and rows(unbroken)[3] != rows(first)[3]


def test_what_came_after_is_a_workdir_of_its_own(first, unbroken, capsys):
  (left,) = aside(unbroken)
  assert store.steps_of(left / "checkpoints") == [6, 8, 10, 12]
  assert sorted(images(left)) == [f"step-{step:08d}.png" for step in (6, 8, 10, 12)]
  assert rows(left) == rows(first)
  assert {path.name: path.read_bytes() for path in left.iterdir() if path.is_file()} == {
      path.name: path.read_bytes() for path in first.iterdir()
      if path.is_file() and not path.name.startswith(".")}
  fact = reader.read_facts(unbroken)["from_step"]
  assert fact["step"] == 4 and unbroken / fact["set_aside"] == left
  assert reader.read(left).status() == reader.read(first).status()


def test_a_run_that_goes_back_is_killed_and_goes_on(run, unbroken, capsys):
  with pytest.raises(Preempted):
    train(run, SLOWER, back_to=4, before_call=runs.stopping_at(6))
  said = capsys.readouterr().out
  assert ("everything after step 4 (4 checkpoints, 4 images, 4 log lines) is set aside in "
          f"{aside(run)[0]}, a separate workdir\nresumed at step 4") in said
  train(run, SLOWER, back_to=4)
  said = capsys.readouterr().out
  assert "--from_step=4: the run already went back to it with these settings; resuming\n" in said
  assert "\nresumed at step 7\n" in said
  assert_same_run(run, unbroken)
  assert len(aside(run)) == 1


def test_other_settings_go_back_again_but_not_a_longer_run(run, unbroken):
  train(run, back_to=8)
  train(run, "train.steps = 14", "train.log_every = 1", back_to=8)
  assert len(aside(run)) == 1 and store.steps_of(run / "checkpoints")[-1] == 14
  train(run, SLOWER, back_to=8)
  assert len({*aside(run)}) == 2 and store.steps_of(run / "checkpoints")[-1] == 12
  resumed = reader.read_facts(run)["resumed"]
  assert [each["step"] for each in resumed] == [8, 12, 8]


def test_the_newest_checkpoint_leaves_nothing_behind_and_is_gone_back_to_once(run, capsys):
  train(run, "train.steps = 14", back_to=12)
  assert "set aside" not in capsys.readouterr().out
  train(run, "train.steps = 16", back_to=12)
  assert "resumed at step 14" in capsys.readouterr().out
  assert not (run / "set_aside").exists()


def test_a_step_without_a_checkpoint_is_one_line_and_nothing_is_moved(run):
  before = sorted(run.rglob("*"))
  assert refusal(train, run, SLOWER, back_to=5) == (
      f"{run}/checkpoints: has no checkpoint of step 5; choose one of the steps "
      "2, 4, 6, 8, 10, 12")
  assert refusal(train, run, back_to=12).startswith(
      "--from_step=12: nothing is left to train, since train.steps = 12")
  assert refusal(train, run.parent / "new", back_to=4).endswith("there are no others")
  assert sorted(path for path in run.rglob("*") if path.name != ".owner") == [
      path for path in before if path.name != ".owner"]


def test_a_checkpoint_that_does_not_fit_moves_nothing(run, monkeypatch):
  class Other(Fit):
    def __init__(self):
      super().__init__()
      self.more = tf.Variable(0.0)

  from_step.go_on_from(4)
  try:
    with pytest.raises(UsageError, match="'more' is not in the checkpoint"):
      runs.train(run, *SETTINGS, step=Other, evaluate=evaluate)
  finally:
    from_step.go_on_from(None)
  assert store.steps_of(run / "checkpoints")[-1] == 12 and not (run / "set_aside").exists()


@pytest.mark.slow
def test_two_processes_go_back_together(tmp_path):
  bindings = [*SMALL, "train.steps = 6", "train.checkpoint_every = 2",
              "Replicator.strategy = 'multi_worker_mirrored'"]
  command = ["tests.programs.two_networks", f"--workdir={tmp_path}"]
  launched(["--workers=2"], *command, bindings=bindings)
  done = launched(["--workers=2"], *command, "--from_step=2",
                  bindings=[*bindings, "TwoNetworks.optimizer = @adam",
                            "adam.learning_rate = 0.01"])
  assert done.stdout.count("resumed at step 2") == 1
  assert store.steps_of(aside(tmp_path)[0] / "checkpoints") == [4, 6]
  assert json.loads((tmp_path / "run.json").read_text())["from_step"]["step"] == 2
