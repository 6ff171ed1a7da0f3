"""A run that was stopped and resumed is the run that was not."""

import functools
import json
import os
import pathlib
import shutil
import signal
import threading
import time

import gin
import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import Evaluation, Replicator, UsageError, config, state
from replicator.checkpoint import Checkpoints
from replicator.errors import Preempted
from tests.programs.two_networks import Points, TwoNetworks, evaluate, network

SMALL = ["train.global_batch_size = 8", "train.log_every = 5", "train.eval_every = 5",
         "train.checkpoint_every = 5"]
MIRRORED_2 = ["Replicator.strategy = 'mirrored'", "Replicator.logical_cpus = 2"]
CENTRAL_2 = ["Replicator.strategy = 'central_storage'", "Replicator.logical_cpus = 2"]


@pytest.fixture(autouse=True)
def restored():
  handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
  yield
  gin.clear_config()
  keras.config.set_floatx("float32")
  keras.config.set_dtype_policy("float32")
  left = {n: signal.signal(n, handler) for n, handler in handlers.items()}
  assert left == handlers  # Each training put them back.


def train(workdir: pathlib.Path, *bindings: str, step=TwoNetworks, inputs=None, evaluate=None):
  config.parse([], [*SMALL, *bindings])
  return replicator.train(step, inputs, evaluate, workdir=str(workdir))


def rows(workdir: pathlib.Path) -> list[dict]:
  """What was logged, without the time it took."""
  lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def values(step) -> dict[str, np.ndarray]:
  return {path: tf.convert_to_tensor(v).numpy() for path, v in state.variables_of(step).items()}


def assert_equal(step, expected: dict[str, np.ndarray]) -> None:
  """Every variable has the same bits."""
  found = values(step)
  assert found.keys() == expected.keys()
  for path, value in expected.items():
    np.testing.assert_array_equal(found[path], value, err_msg=path)


class Counter(tf.Module):
  """Counts its steps. Takes no inputs."""

  def __init__(self):
    super().__init__()
    self.count = tf.Variable(0.0, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)

  def __call__(self) -> dict[str, tf.Tensor]:
    self.count.assign_add(1.0)
    return {"count": self.count.read_value()}


# ---- Saving and restoring -----------------------------------------------------------------------


def test_what_was_saved_comes_back(tmp_path):
  Checkpoints(tmp_path, saved := Counter(), is_chief=True).save(0, {})
  saved.count.assign(7.0)
  loop_state = {"seconds": 0.1 + 0.2, "window": {"sums": {"loss": float("inf")}, "count": 3}}
  Checkpoints(tmp_path, saved, is_chief=True).save(12, loop_state)
  found = Checkpoints(tmp_path, other := Counter(), is_chief=True).restore()
  assert found == {**loop_state, "step": 12}
  assert other.count.numpy() == 7.0


def test_no_checkpoint_is_none(tmp_path):
  assert Checkpoints(tmp_path / "none", Counter(), is_chief=True).restore() is None


def test_the_newest_three_stay_also_over_a_restart(tmp_path):
  def kept():
    return sorted(p.stem for p in tmp_path.glob("*.index"))
  checkpoints = Checkpoints(tmp_path, Counter(), is_chief=True)
  for step in range(1, 6):
    checkpoints.save(step, {})
  assert kept() == ["step-3", "step-4", "step-5"]
  checkpoints = Checkpoints(tmp_path, Counter(), is_chief=True)
  assert checkpoints.restore() == {"step": 5}
  checkpoints.save(6, {})
  assert kept() == ["step-4", "step-5", "step-6"]


def test_a_worker_that_is_not_chief_keeps_nothing_and_reads_from_the_chief(tmp_path):
  chief, worker = Counter(), Counter()
  chief.count.assign(3.0)
  Checkpoints(tmp_path, chief, is_chief=True).save(4, {})
  before = {p: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
  checkpoints = Checkpoints(tmp_path, worker, is_chief=False)
  assert checkpoints.restore() == {"step": 4}
  assert worker.count.numpy() == 3.0
  checkpoints.save(8, {})
  assert {p: p.stat().st_mtime_ns for p in tmp_path.iterdir()} == before
  checkpoints._scratch.cleanup()  # Or else its end is a warning, which tests take for an error.


class Fewer(tf.Module):
  def __init__(self):
    super().__init__()
    self.generator = network(3)

  def __call__(self, batch):
    return {"loss": tf.reduce_mean(self.generator(batch["x"]))}


class More(TwoNetworks):
  def __init__(self):
    super().__init__()
    self.extra = network(3)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> pathlib.Path:
  workdir = tmp_path_factory.mktemp("trained")
  train(workdir, "train.steps = 5", inputs=Points())
  return workdir


@pytest.mark.parametrize("bindings, step", [
    (["TwoNetworks.critic_width = 2"], TwoNetworks),
    (["TwoNetworks.critic_width = 2", *MIRRORED_2], TwoNetworks),
    (["TwoNetworks.optimizer = @SGD", "SGD.learning_rate = 0.1"], TwoNetworks),
    (["train.precision = 'float64'"], TwoNetworks), ([], Fewer), ([], More)],
    ids=["shape", "shape, mirrored", "optimizer", "precision", "fewer", "more"])
def test_another_step_than_the_saved_one_is_told(bindings, step, trained):
  before = rows(trained)
  with pytest.raises(UsageError, match=r"step-5: does not fit this step .* --workdir\n"):
    train(trained, "train.steps = 10", *bindings, step=step, inputs=Points())
  assert rows(trained) == before


@pytest.mark.parametrize("damage", ["gone", "torn"])
def test_a_damaged_checkpoint_is_told_and_not_passed_over(damage, trained, tmp_path):
  workdir = shutil.copytree(trained, tmp_path / "copy")
  for file in (workdir / "checkpoints").glob("step-5.*"):
    if damage == "gone":
      file.unlink()
    else:
      os.truncate(file, 20)
  before = rows(workdir)
  with pytest.raises(UsageError, match="checkpoints"):
    train(workdir, "train.steps = 10", inputs=Points())
  assert rows(workdir) == before


# ---- Nothing is lost ----------------------------------------------------------------------------


class Forgetful(tf.Module):
  """Uses a variable that no attribute leads to."""

  def __init__(self, use):
    super().__init__()
    # As a set is no container that could be walked in the same order twice.
    self.hidden = {tf.Variable(0.0, name="lost", aggregation=tf.VariableAggregation.MEAN).ref()}
    self.use = use

  def __call__(self):
    (hidden,) = self.hidden
    return {"value": self.use(hidden.deref())}


def read(v):
  return v + 1.0


def assign(v):
  v.assign_add(1.0)
  return tf.constant(0.0)


@pytest.mark.parametrize("bindings", [[], MIRRORED_2, CENTRAL_2, ["train.steps_per_call = 5"]],
                         ids=["default", "mirrored", "central", "steps_per_call"])
@pytest.mark.parametrize("use", [read, assign])
def test_a_variable_that_a_restart_would_lose_is_told(use, bindings, tmp_path):
  with pytest.raises(UsageError, match=r"not reached through its attributes, such as '.*lost"):
    train(tmp_path, "train.steps = 10", *bindings, step=lambda: Forgetful(use))


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


# ---- A resumed run is the run that was not stopped ----------------------------------------------


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
  assert json.loads((tmp_path / "run.json").read_text())["resumed_at_step"] == 10


def test_a_run_continues_under_another_strategy(tmp_path):
  float64 = "train.precision = 'float64'"
  train(tmp_path / "whole", "train.steps = 10", float64, inputs=Points())
  train(tmp_path / "parts", "train.steps = 5", float64, *MIRRORED_2, inputs=Points())
  train(tmp_path / "parts", "train.steps = 10", float64, inputs=Points())
  for found, expected in zip(rows(tmp_path / "parts"), rows(tmp_path / "whole"), strict=True):
    assert found == pytest.approx(expected, rel=1e-9)


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


# ---- Asked to stop ------------------------------------------------------------------------------


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


def test_a_stop_between_two_log_points_loses_nothing(tmp_path):
  setting = ["train.steps_per_call = 2", "train.log_every = 100000000", "train.eval_every = 0",
             "train.checkpoint_every = 0"]
  started = threading.Event()

  def make_step():
    started.set()
    return Counter()

  def ask():
    started.wait()
    time.sleep(1.0)  # The training has begun to turn, or at least to listen.
    os.kill(os.getpid(), signal.SIGTERM)

  thread = threading.Thread(target=ask)
  thread.start()
  with pytest.raises(Preempted) as stopped:
    train(tmp_path, "train.steps = 100000000", *setting, step=make_step)
  thread.join()
  done = stopped.value.step
  assert done > 0 and done % 2 == 0
  assert not (tmp_path / "metrics.jsonl").exists()
  counter = train(tmp_path, f"train.steps = {done + 10}", *setting, step=Counter)
  assert counter.count.numpy() == done + 10
  # The mean of 1, 2, ..., over both parts.
  assert rows(tmp_path) == [{"step": done + 10, "count": (done + 11) / 2}]


def test_a_second_interrupt_does_not_wait(tmp_path):
  def ask_twice(counter):
    if counter.count.numpy() == 5:
      os.kill(os.getpid(), signal.SIGINT)
      os.kill(os.getpid(), signal.SIGINT)
    return Evaluation({})
  with pytest.raises(KeyboardInterrupt):
    train(tmp_path, "train.steps = 100", step=Counter, evaluate=ask_twice)


def test_a_second_sigterm_waits(tmp_path):
  def ask_twice(counter):
    if counter.count.numpy() == 5:
      os.kill(os.getpid(), signal.SIGTERM)
      os.kill(os.getpid(), signal.SIGTERM)
    return Evaluation({})
  with pytest.raises(Preempted) as stopped:
    train(tmp_path, "train.steps = 100", step=Counter, evaluate=ask_twice)
  assert stopped.value.step == 6


def test_what_a_stop_would_lose_is_told_where_no_checkpoints_were_asked_for(tmp_path):
  # A stop saves all the same.
  with pytest.raises(UsageError, match="not reached through its attributes"):
    train(tmp_path, "train.steps = 5", "train.checkpoint_every = 0",
          step=lambda: Forgetful(read))


def test_the_wish_to_stop_ends_a_finished_run_well(tmp_path):
  def ask(counter):
    if counter.count.numpy() == 5:
      os.kill(os.getpid(), signal.SIGTERM)
    return Evaluation({})
  assert train(tmp_path, "train.steps = 5", step=Counter, evaluate=ask).count.numpy() == 5
  assert (tmp_path / "report.html").exists()


def test_all_variables_of_a_replicated_step_are_saved_under_every_strategy(synchronous, tmp_path):
  assert isinstance(synchronous, Replicator)
  with synchronous.scope():
    step, other = TwoNetworks(), TwoNetworks()
    for i, variable in enumerate(state.variables_of(step).values()):
      variable.assign(tf.cast(tf.fill(variable.shape, i), variable.dtype))
    Checkpoints(tmp_path, step, is_chief=True).save(1, {})
    Checkpoints(tmp_path, other, is_chief=True).restore()
  for i, (path, variable) in enumerate(state.variables_of(other).items()):
    copies = variable.values if hasattr(variable, "values") else [variable]
    for copy in copies:
      np.testing.assert_array_equal(copy, np.full(variable.shape, i), err_msg=path)
