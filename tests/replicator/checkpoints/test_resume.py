"""A run that was stopped and resumed is the run that was not."""

import functools
import json
import os
import signal

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing import plugin_event_accumulator

from replicator import Evaluation
from replicator.errors import Preempted, UsageError
from tests.programs.counter import Counter
from tests.programs.logs import rows
from tests.programs.two_networks import Points, evaluate
from tests.replicator.checkpoints.runs import (
  CENTRAL_2,
  MIRRORED_2,
  MIRRORED_4,
  assert_equal,
  train,
  values,
)

pytestmark = pytest.mark.usefixtures("restored", "without_curves")

BY_NAME = {"default": [], "mirrored": [*MIRRORED_2, "train.steps_per_call = 5"],
           "central": CENTRAL_2}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
  """A function: what 15 steps log and what their variables are, under the strategy of a name."""
  @functools.cache
  def run(name: str):
    workdir = tmp_path_factory.mktemp(name)
    step = train(workdir, "train.steps = 15", *BY_NAME[name], inputs=Points(), evaluate=evaluate)
    assert [row["step"] for row in rows(workdir)] == [0, 5, 10, 15]
    return rows(workdir), values(step)
  return run


@pytest.mark.parametrize("name", ["default", "central"])
def test_a_resumed_run_is_bitwise_the_unbroken_one(name, unbroken, tmp_path):
  expected_rows, expected_values = unbroken(name)
  for steps in (10, 15):
    step = train(tmp_path, f"train.steps = {steps}", *BY_NAME[name], inputs=Points(),
                 evaluate=evaluate)
  assert rows(tmp_path) == expected_rows
  assert_equal(step, expected_values)
  assert json.loads((tmp_path / "run.json").read_text())["resumed"][0]["step"] == 10


@pytest.mark.parametrize("parts", [
    [MIRRORED_2, []],
    pytest.param([MIRRORED_2, MIRRORED_4, MIRRORED_2, [], CENTRAL_2], marks=pytest.mark.slow)],
    ids=["2, 1", "2, 4, 2, 1, central"])
def test_a_run_continues_on_other_numbers_of_replicas(parts, tmp_path):
  float64 = "train.precision = 'float64'"
  train(tmp_path / "whole", f"train.steps = {5 * len(parts)}", float64, *parts[0], inputs=Points())
  for i, bindings in enumerate(parts):
    train(tmp_path / "parts", f"train.steps = {5 * i + 5}", float64, *bindings, inputs=Points())
  for found, expected in zip(rows(tmp_path / "parts"), rows(tmp_path / "whole"), strict=True):
    assert found == pytest.approx(expected, rel=1e-9)


def test_a_run_is_not_resumed_with_another_number_of_examples(tmp_path):
  def run(size, steps):
    points = Points()
    points.size = size
    train(tmp_path, f"train.steps = {steps}", inputs=points,
          step=lambda: lambda batch: {"mean": tf.reduce_mean(batch["x"])})

  run(50, 5)
  with pytest.raises(UsageError) as error:
    run(49, 10)
  assert str(error.value).splitlines()[0] == (
      "--workdir: the run was saved with 50 examples, and the data has 49, so its steps would get "
      "others; put the data back as it was, or write another --workdir")
  run(50, 10)
  assert [row["step"] for row in rows(tmp_path)] == [5, 10]


def test_a_crashed_run_resumes_with_the_means_since_its_last_log_point(tmp_path):
  # Logs at 4, 8, 12, ...; saved at 5 and 10; crashes at 13, after a half-written line.
  setting = ["train.log_every = 4", "train.checkpoint_every = 5", "train.eval_every = 13",
             "train.steps = 20"]

  def crash(networks):
    if networks.optimizers["critic"].keras_optimizer.iterations.numpy() == 13:
      raise OSError("the disk is full")
    return Evaluation({})

  unbroken = train(tmp_path / "whole", *setting, inputs=Points(),
                   evaluate=lambda networks: Evaluation({}))
  with pytest.raises(OSError, match="the disk is full"):
    train(tmp_path / "parts", *setting, inputs=Points(), evaluate=crash)
  assert [row["step"] for row in rows(tmp_path / "parts")] == [4, 8, 12]
  with (tmp_path / "parts" / "metrics.jsonl").open("a") as metrics:
    metrics.write('{"step": 13, "secon')
  resumed = train(tmp_path / "parts", *setting, inputs=Points(),
                  evaluate=lambda networks: Evaluation({}))
  assert [row["step"] for row in rows(tmp_path / "whole")] == [4, 8, 12, 16, 20]
  assert rows(tmp_path / "parts") == rows(tmp_path / "whole")
  assert_equal(resumed, values(unbroken))


def test_pictures_after_the_last_checkpoint_are_removed(tmp_path):
  def draw(counter):
    if (step := counter.count.numpy()) == 8 and not (tmp_path / "again").exists():
      raise KeyboardInterrupt
    return Evaluation({"twice": 2 * step}, np.zeros([2, 2, 3], np.uint8))

  setting = ["train.eval_every = 2", "train.checkpoint_every = 3"]
  with pytest.raises(KeyboardInterrupt):
    train(tmp_path, "train.steps = 10", *setting, step=Counter, evaluate=draw)
  (tmp_path / "again").touch()
  train(tmp_path, "train.steps = 6", *setting, step=Counter, evaluate=pytest.fail)
  assert [row["step"] for row in rows(tmp_path)] == [0, 2, 4, 5, 6]
  assert len(list((tmp_path / "samples").iterdir())) == 4
  train(tmp_path, "train.steps = 10", *setting, step=Counter, evaluate=draw)
  events = plugin_event_accumulator.EventAccumulator(str(tmp_path))
  events.Reload()
  assert [event.step for event in events.Tensors("eval/twice")] == [0, 2, 4, 6, 8, 10]


def test_a_finished_run_stays_as_it_is(tmp_path, capsys):
  step = train(tmp_path, "train.steps = 5", inputs=Points(), evaluate=evaluate)
  before = {name: (tmp_path / name).read_text() for name in ("metrics.jsonl", "config.gin")}
  capsys.readouterr()
  again = train(tmp_path, "train.steps = 5", inputs=Points(), evaluate=pytest.fail)
  assert {name: (tmp_path / name).read_text() for name in before} == before
  assert capsys.readouterr().out.splitlines() == [
      "resumed at step 5", f"done: {tmp_path / 'report.html'}"]
  assert_equal(again, values(step))
  assert json.loads((tmp_path / "run.json").read_text())["evaluation"] == "mean of 8 samples"


@pytest.mark.parametrize("number, name, stops_at", [
    (signal.SIGTERM, "default", 6), (signal.SIGINT, "mirrored", 10)])
def test_a_preempted_run_saves_and_resumes(number, name, stops_at, unbroken, tmp_path):
  def ask(networks):
    if networks.optimizers["critic"].keras_optimizer.iterations.numpy() == 5:
      os.kill(os.getpid(), number)
    return evaluate(networks)

  expected_rows, expected_values = unbroken(name)
  setting = ["train.steps = 15", "train.checkpoint_every = 0", *BY_NAME[name]]
  with pytest.raises(Preempted, match=f"stopped at step {stops_at}, which is saved") as stopped:
    train(tmp_path, *setting, inputs=Points(), evaluate=ask)
  assert stopped.value.step == stops_at  # One call after it asked.
  step = train(tmp_path, *setting, inputs=Points(), evaluate=ask)
  assert rows(tmp_path) == expected_rows
  assert_equal(step, expected_values)


@pytest.mark.parametrize("bindings", [[], MIRRORED_2, CENTRAL_2],
                         ids=["default", "mirrored", "central"])
def test_a_step_with_a_generator_continues_its_numbers(bindings, tmp_path):
  class Drawing(tf.Module):
    def __init__(self):
      super().__init__()
      self.generator = tf.random.Generator.from_seed(1, alg="philox")

    def __call__(self):
      return {"x": self.generator.uniform([])}

  for workdir, all_steps in {"whole": [10], "parts": [5, 10]}.items():
    for steps in all_steps:
      train(tmp_path / workdir, f"train.steps = {steps}", *bindings, step=Drawing)
  assert rows(tmp_path / "parts") == rows(tmp_path / "whole")
