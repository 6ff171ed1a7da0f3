"""A training and what it leaves behind, under every strategy. Resuming is in test_checkpoint."""

import errno
import functools
import json
import os
import pathlib
import threading
import time

import gin
import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import replicator
from replicator import Evaluation, UsageError, random
from replicator.app import config
from replicator.checkpoints import checkpoint
from replicator.console.progress import Progress
from replicator.errors import RunFailed, chain_of
from replicator.step.variables import variables_of
from replicator.training import chief
from tests.programs.two_networks import WIDTH, Points, TwoNetworks, evaluate, network

SMALL = ["train.global_batch_size = 8", "train.log_every = 1", "train.eval_every = 0",
         "train.checkpoint_every = 0"]
MIRRORED_2 = ["Replicator.strategy = 'mirrored'", "Replicator.logical_cpus = 2"]


pytestmark = pytest.mark.usefixtures("restored", "without_curves")


def train(workdir: pathlib.Path, *bindings: str, step=TwoNetworks, inputs=None, evaluate=None):
  config.parse([], [*SMALL, *bindings])
  return replicator.train(step, inputs, evaluate, workdir=str(workdir))


def rows(workdir: pathlib.Path) -> list[dict]:
  return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def column(workdir: pathlib.Path, name: str) -> dict[int, float]:
  """The values of one scalar, by step."""
  return {row["step"]: row[name] for row in rows(workdir) if name in row}


class Counter(tf.Module):
  """Counts its steps: values that are known in advance. Takes no inputs."""

  def __init__(self):
    super().__init__()
    self.count = tf.Variable(0.0, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)

  def __call__(self) -> dict[str, tf.Tensor]:
    self.count.assign_add(1.0)
    return {"count": self.count.read_value(), "number": replicator.step_number(),
            "replica": replicator.replica_id()}


# ---- What a run leaves behind -------------------------------------------------------------------


def test_a_run_trains_and_leaves_its_files(tmp_path, capsys):
  initial = []
  def make_step():
    networks = TwoNetworks()
    initial.extend(v.numpy() for v in networks.generator.trainable_variables)
    return networks

  networks = train(tmp_path, "train.steps = 10", "train.log_every = 5", "train.eval_every = 5",
                   "train.checkpoint_every = 5", "train.seed = 3", step=make_step,
                   inputs=Points(), evaluate=evaluate)

  assert networks.optimizers["critic"].keras_optimizer.iterations.numpy() == 10
  printed = capsys.readouterr().out
  assert printed.count("evaluation: mean of 8 samples\n") == 1  # It is the same every time.
  assert all(f"step {step}  eval/mean " in printed for step in (0, 5, 10))
  for old, new in zip(initial, networks.generator.trainable_variables, strict=True):
    assert np.abs(old - new.numpy()).max() > 1e-3
  # One object for each log point; what an evaluation found is part of it.
  first, *others = rows(tmp_path)
  assert list(first) == ["step", "seconds", "eval/mean"]
  assert [list(row) for row in others] == [
      ["step", "seconds", "critic", "generator", "grad_norm/generator", "grad_norm/critic",
       "learning_rate/generator", "learning_rate/critic", "data_wait", "eval/mean"]] * 2
  assert [row["step"] for row in [first, *others]] == [0, 5, 10]
  assert 0 <= first["seconds"] < others[0]["seconds"] <= others[1]["seconds"]
  assert all(np.isfinite(value) for row in others for value in row.values())
  assert all(0 <= row["data_wait"] <= 1 for row in others)
  pictures = sorted((tmp_path / "samples").iterdir())
  assert [p.name for p in pictures] == [f"step-{s:08d}.png" for s in (0, 5, 10)]
  with Image.open(pictures[0]) as picture:
    assert picture.size == (WIDTH, 8)
  facts = json.loads((tmp_path / "run.json").read_text())
  assert {"command", "experiment", "started", "git_commit", "versions", "machine"} < set(facts)
  assert {"python", "tensorflow", "keras", "numpy"} <= set(facts["versions"])
  expected = {"strategy": "default", "num_replicas": 1, "num_workers": 1, "global_batch_size": 8,
          "seed": 3, "precision": "float32", "steps": 10, "resumed": [],
          "evaluation": "mean of 8 samples"}
  assert {name: facts[name] for name in expected} == expected
  assert checkpoint.steps_of(tmp_path / "checkpoints") == [5, 10]
  assert list(tmp_path.glob("events.out.tfevents.*"))
  assert "finished at step 10" in (tmp_path / "report.html").read_text()


def test_the_written_configuration_makes_the_same_run_again(tmp_path):
  train(tmp_path / "1", "train.steps = 3", "train.precision = 'float64'", "train.seed = 7",
        "TwoNetworks.optimizer = @rmsprop", "rmsprop.learning_rate = 0.02", "rmsprop.rho = 0.5",
        "Replicator.logical_cpus = 4", inputs=Points())
  written = tmp_path / "1" / "config.gin"
  text = written.read_text()
  for line in ("rmsprop.rho = 0.5", "TwoNetworks.optimizer = @rmsprop",
               "Replicator.logical_cpus = 4", "Replicator.strategy = 'default'",
               "train.global_batch_size = 8", "train.precision = 'float64'", "train.seed = 7"):
    assert line in text

  config.parse([str(written)], [])
  replicator.train(TwoNetworks, Points(), workdir=str(tmp_path / "2"))
  assert (tmp_path / "2" / "config.gin").read_text() == text
  for name in ("critic", "generator"):
    assert column(tmp_path / "2", name) == column(tmp_path / "1", name)


@pytest.mark.parametrize("strategy, replicas", [([], 1), (MIRRORED_2, 2)])
@pytest.mark.parametrize("steps_per_call", [1, 2])
def test_a_log_point_has_the_mean_since_the_last_one(steps_per_call, strategy, replicas, tmp_path):
  counter = train(tmp_path, "train.steps = 10", "train.log_every = 4", *strategy,
                  f"train.steps_per_call = {steps_per_call}", step=Counter)
  assert column(tmp_path, "count") == {4: 2.5, 8: 6.5, 10: 9.5}
  assert column(tmp_path, "number") == {4: 1.5, 8: 5.5, 10: 8.5}  # The steps count from 0.
  assert set(column(tmp_path, "replica").values()) == {(replicas - 1) / 2}
  assert counter.count.numpy() == 10


def test_evaluations_come_at_their_steps_and_at_the_end(tmp_path):
  def count(counter):
    return Evaluation({"count": counter.count.numpy(), "number": replicator.step_number()})
  train(tmp_path, "train.steps = 10", "train.log_every = 10", "train.eval_every = 4",
        step=Counter, evaluate=count)
  for name in ("count", "number"):  # Its random draws belong to the step.
    assert column(tmp_path, f"eval/{name}") == {0: 0, 4: 4, 8: 8, 10: 10}
  assert column(tmp_path, "count") == {10: 5.5}
  assert not list((tmp_path / "samples").iterdir())  # It drew nothing.
  assert "evaluation" not in json.loads((tmp_path / "run.json").read_text())


def test_an_evaluation_names_axes_as_they_are_logged(tmp_path):
  train(tmp_path, "train.steps = 1", "train.eval_every = 1", step=Counter,
        evaluate=lambda step: Evaluation({"frames": 4.0, "return": 1.0}, axes=("frames",)))
  axes = json.loads((tmp_path / "run.json").read_text())["axes"]
  assert axes == ["eval/frames"]
  assert set(axes) < set(rows(tmp_path)[0])


def test_a_step_is_traced_after_its_first_before_call_and_evaluated_before(tmp_path):
  class Given(tf.Module):
    rate = None

    def __call__(self):
      return {"rate": tf.constant(self.rate)}

  seen = []
  config.parse([], [*SMALL, "train.steps = 1", "train.eval_every = 1"])
  replicator.train(Given, evaluate=lambda step: seen.append(step.rate) or Evaluation({}),
                   before_call=lambda step, number: setattr(step, "rate", 0.5),
                   workdir=str(tmp_path))
  assert column(tmp_path, "rate") == {1: 0.5} and seen == [None, 0.5]


@pytest.mark.parametrize("bindings, is_deterministic", [
    ([], True), (["train.deterministic = False", "Guard.signals = False"], False)])
def test_operations_are_deterministic_and_signals_logged_unless_that_is_off(
    bindings, is_deterministic, tmp_path, monkeypatch):
  calls = []
  monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: calls.append(1))
  train(tmp_path, "train.steps = 1", *bindings, step=make_function, inputs=Points())
  assert bool(calls) == is_deterministic
  names = {"grad_norm/optimizer", "learning_rate/optimizer"} if is_deterministic else set()
  assert set(rows(tmp_path)[0]) == {"step", "seconds", "data_wait", "loss"} | names


def test_nothing_is_evaluated_or_saved_where_nobody_asked(tmp_path):
  train(tmp_path, "train.steps = 3", step=Counter, evaluate=pytest.fail)
  assert [list(row) for row in rows(tmp_path)] == [
      ["step", "seconds", "count", "number", "replica"]] * 3
  assert not (tmp_path / "checkpoints").exists()


def test_a_fault_of_the_disk_of_the_data_is_not_one_of_the_workdir(tmp_path):
  class Torn:
    size = 8

    def load(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
      def read(index):
        raise UsageError(f"{index}.jpg cannot be read ({os.strerror(errno.EIO)})")
      return {"x": tf.ensure_shape(tf.numpy_function(read, [index], tf.float32), [])}

  config.parse([], [*SMALL, "train.steps = 1"])
  with pytest.raises(tf.errors.OpError) as error:
    replicator.train(lambda: lambda batch: {"x": tf.reduce_mean(batch["x"])}, Torn(),
                     workdir=str(tmp_path))
  assert str(chain_of(error.value)[-1]).endswith(".jpg cannot be read (Input/output error)")


def test_a_checkpoint_that_cannot_be_written_ends_the_run_before_the_next(tmp_path, monkeypatch):
  failed = threading.Event()

  def full(*arguments):
    failed.set()
    raise OSError(errno.ENOSPC, "No space left on device")

  def before_call(step, number):
    if number >= 20:
      failed.wait(timeout=60)
      time.sleep(0.02)

  monkeypatch.setattr(checkpoint, "_write_bundle", full)
  config.parse([], [*SMALL, "train.steps = 40", "train.checkpoint_every = 20"])
  with pytest.raises(RunFailed, match="step-00000020: could not be saved"):
    replicator.train(Counter, before_call=before_call, workdir=str(tmp_path))
  assert 20 <= rows(tmp_path)[-1]["step"] < 40


# ---- The strategy does not change the training --------------------------------------------------


FLOAT64 = ["train.steps = 10", "train.precision = 'float64'"]


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory) -> np.ndarray:
  """The losses of every step on one replica, one step a call: [10, 2]."""
  return losses(tmp_path_factory.mktemp("one"))


def losses(workdir: pathlib.Path, *bindings: str, name="default", devices=None) -> np.ndarray:
  train(workdir, *FLOAT64, f"Replicator.strategy = '{name}'",
        f"Replicator.logical_cpus = {devices}", *bindings, inputs=Points())
  return np.array([[row["critic"], row["generator"]] for row in rows(workdir)])


@pytest.mark.parametrize("name, devices", [
    ("one_device", None), ("mirrored", 2), ("mirrored", 4), ("central_storage", 2)])
def test_strategy_does_not_change_the_losses(name, devices, one_by_one, tmp_path):
  found = losses(tmp_path, name=name, devices=devices)
  assert found.shape == (10, 2)
  np.testing.assert_allclose(found, one_by_one, rtol=1e-9)


@pytest.mark.parametrize("name, devices", [
    ("default", None), ("mirrored", 2), ("central_storage", 2)])
def test_steps_per_call_does_not_change_the_losses(name, devices, one_by_one, tmp_path):
  found = losses(tmp_path, "train.steps_per_call = 5", "train.log_every = 5",
                 name=name, devices=devices)
  np.testing.assert_allclose(found, one_by_one.reshape(2, 5, 2).mean(1), rtol=1e-9)


# ---- Kinds of steps and inputs ------------------------------------------------------------------


def make_function():
  """A step that is a plain function, over networks and an optimizer of its closure."""
  net = network(1)
  optimizer = replicator.wrap_optimizer(keras.optimizers.Adam(0.1), net.trainable_variables)

  def step(batch):
    with tf.GradientTape() as tape:
      loss = tf.reduce_mean((net(batch["x"], training=True) - 1.0) ** 2)
    optimizer.apply(tape.gradient(loss, net.trainable_variables), net.trainable_variables)
    return {"loss": loss}

  return step


def test_a_plain_function_trains_and_resumes(tmp_path):
  saving = "train.checkpoint_every = 10"
  step = train(tmp_path / "whole", "train.steps = 30", saving, step=make_function, inputs=Points())
  values = list(column(tmp_path / "whole", "loss").values())
  assert values[-1] < values[0] / 2
  # 3 weights and 4 of the batch norm; iterations, learning rate, 2 slots for all; a counter.
  assert len(variables_of(step)) == 7 + 2 + 2 + 1

  train(tmp_path / "parts", "train.steps = 10", saving, step=make_function, inputs=Points())
  train(tmp_path / "parts", "train.steps = 30", saving, step=make_function, inputs=Points())
  assert list(column(tmp_path / "parts", "loss").values()) == values


def test_a_step_without_inputs_draws_its_own_examples(tmp_path):
  def make_step():
    return lambda: {"mean": tf.reduce_mean(random.normal("x", [8 // replicator.num_replicas()]))}
  train(tmp_path / "1", "train.steps = 3", step=make_step)
  train(tmp_path / "2", "train.steps = 3", *MIRRORED_2, step=make_step)
  train(tmp_path / "3", "train.steps = 3", "train.seed = 1", step=make_step)
  one, two, seeded = (list(column(tmp_path / name, "mean").values()) for name in "123")
  assert len({*one, *seeded}) == 6
  np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("strategy, replicas", [([], 1), (MIRRORED_2, 2)])
def test_an_input_function_provides_the_batches(strategy, replicas, tmp_path):
  contexts = []

  def numbers(context):
    contexts.append(context)
    size = context.batch_size
    steps = tf.data.Dataset.range(100)
    return steps.map(lambda s: (s * size + tf.range(size, dtype=tf.int64), tf.fill([size, 2], s)))

  def mean(batch):
    position, step = batch
    assert position.shape == [8 // replicas] and step.shape == [8 // replicas, 2]
    return {"position": tf.reduce_mean(tf.cast(position, "float32")),
            "step": tf.reduce_max(step)}

  saving = "train.checkpoint_every = 2"
  for steps in (2, 4):  # The second time it resumes.
    train(tmp_path, f"train.steps = {steps}", "train.seed = 5", saving, *strategy,
          step=lambda: lambda batch: {"mean": mean(batch)["position"]}, inputs=numbers)
  # Step s sees the positions 8 s ... 8 s + 7.
  assert column(tmp_path, "mean") == {1: 3.5, 2: 11.5, 3: 19.5, 4: 27.5}
  assert contexts[0] == replicator.InputContext(
      global_batch_size=8, input_pipeline_id=0, num_input_pipelines=1,
      num_replicas_in_sync=replicas, seed=5)


@pytest.mark.parametrize("of_data, of_step", [(0.03, 0.0), (0.0, 0.03)], ids=["data", "step"])
def test_the_log_says_which_share_of_the_time_waited_for_data(of_data, of_step, tmp_path, capsys):
  def slept(numbers: np.ndarray) -> np.ndarray:
    time.sleep(of_data)
    return numbers

  def slow(context):
    return tf.data.Dataset.range(100).map(lambda s: tf.ensure_shape(
        tf.numpy_function(slept, [tf.fill([8], s)], tf.int64), [8]))

  config.parse([], [*SMALL, "train.steps = 10", "train.log_every = 5"])
  replicator.train(lambda: lambda x: {"x": tf.reduce_max(x)}, slow, workdir=str(tmp_path),
                   before_call=lambda *call: time.sleep(of_step))
  share = column(tmp_path, "data_wait")[10]
  assert (share > 0.5) == bool(of_data)
  assert "step 10/10" in (line := capsys.readouterr().out) and f"data wait {share:.0%}" in line


def test_a_data_set_that_ends_early_is_an_error(tmp_path):
  def short(context):
    return tf.data.Dataset.range(5).map(lambda s: tf.zeros([context.batch_size]))
  with pytest.raises(UsageError, match=r"ended before train.steps; make it repeat\(\)"):
    train(tmp_path, "train.steps = 6", step=lambda: lambda x: {"x": tf.reduce_mean(x)},
          inputs=short)
  assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("outputs, message", [
    (lambda x: None, "dict of scalars to log.* not NoneType"),
    (lambda x: {}, "non-empty dict of scalars"),
    (lambda x: [tf.reduce_mean(x)], "dict of scalars to log.* not list"),
    (lambda x: {"loss": x}, r"'loss' of shape \(8,\); return a scalar"),
    # `metrics.jsonl` has these itself.
    (lambda x: {"loss": x[0], "staleness": x[0]}, "'staleness'"),
    (lambda x: {"loss": x[0], "step": x[0]}, "'step'"),
    (lambda x: {"loss": x[0], "data_wait": x[0]}, "'data_wait'"),
    (lambda x: {"loss": x[0], "seconds": x[0]}, "'seconds'")])
def test_a_step_that_returns_what_cannot_be_logged_is_refused(outputs, message, tmp_path):
  def zeros(context):
    return tf.data.Dataset.from_tensors(tf.zeros([context.batch_size])).repeat()
  with pytest.raises(UsageError, match=message):
    train(tmp_path, "train.steps = 1", step=lambda: outputs, inputs=zeros)


def test_a_run_that_failed_has_a_report_of_it_and_one_that_did_not_begin_has_none(tmp_path):
  def fails():
    raise ValueError("of the user")

  for name, step, kind in (("failed", fails, ValueError),
                           ("refused", lambda: {"loss": tf.zeros([2])}, UsageError)):
    with pytest.raises(kind):
      train(tmp_path / name, "train.steps = 1", step=lambda step=step: step)
  ended = [json.loads((tmp_path / name / "run.json").read_text()).get("ended")
           for name in ("failed", "refused")]
  assert ended[0].startswith("failed: ") and ended[0].endswith("ValueError: of the user")
  assert "of the user" in (tmp_path / "failed" / "report.html").read_text()
  assert ended[1] is None and not (tmp_path / "refused" / "report.html").exists()


# ---- Settings that cannot work ------------------------------------------------------------------


@pytest.mark.parametrize("binding, message", [
    ("train.steps = 0", "train.steps = 0: must be a whole number of at least 1"),
    ("train.steps = 10.0", "train.steps = 10.0: must be int, not float"),
    ("train.steps = '10'", "train.steps = '10': must be int, not str"),
    ("train.steps_per_call = 3", "train.steps = 10: must be a multiple of train.steps_per_call"),
    ("train.steps_per_call = 5", "train.log_every = 1: must be a multiple of train.steps_per_call"),
    ("train.steps_per_call = 0", "train.steps_per_call = 0: must be a whole number of at least 1"),
    ("train.steps_per_call = -2", "train.steps_per_call = -2: must be a whole number"),
    ("train.steps_per_call = 'x'", "train.steps_per_call = 'x': must be int, not str"),
    ("train.log_every = 0", "train.log_every = 0: must be a whole number of at least 1"),
    ("train.log_every = -1", "train.log_every = -1: must be a whole number"),
    ("train.eval_every = -1", "train.eval_every = -1: must be a whole number of at least 0"),
    ("train.eval_every = 2.5", "train.eval_every = 2.5: must be int, not float"),
    ("train.checkpoint_every = None", "train.checkpoint_every = None: must be int"),
    ("train.global_batch_size = 0", "train.global_batch_size = 0"),
    ("train.global_batch_size = 8.0", "train.global_batch_size = 8.0"),
    ("train.global_batch_size = '8'", "train.global_batch_size = '8'"),
    ("train.seed = -1", "train.seed = -1"),
    ("train.seed = 1.5", "train.seed = 1.5"),
    ("train.seed = 4294967296", "train.seed = 4294967296"),
    ("train.precision = 'float46'", "'float46': no such precision. Did you mean 'float64'"),
    ("train.precision = 'half'", "Write one of: float32, float64, mixed_bfloat16"),
    ("train.precision = 64", "train.precision = "),
    ("Replicator.strategy = 'mirored'", "'mirored': no such strategy. Did you mean 'mirrored'"),
])
def test_a_setting_that_cannot_work_is_an_error_of_one_line(binding, message, tmp_path):
  with pytest.raises(UsageError, match=message) as raised:
    train(tmp_path / "run", "train.steps = 10", binding, step=pytest.fail)
  # gin adds lines of its own, which the command line does not show.
  assert "\n" not in str(raised.value).partition("\n  In call to configurable")[0]
  assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("bindings, step, message", [
    (["microbatch.n = 3"], lambda: {"loss": replicator.microbatch(
        lambda x: tf.reduce_mean(x), tf.zeros([8]))}, "microbatch.n = 3: does not divide"),
    (["critick/microbatch.n = 2"], lambda: {"loss": in_scope("critic")},
     "critick/microbatch.n is never used.* Did you mean 'critic'?"),
    (["Guard.limits = {'los': 1.0}"], lambda: {"loss": 0.0}, "the step logs no 'los'"),
    (["Checkpoints.keep_best = 'los'"], lambda: {"loss": 0.0}, "keep_best = 'los': nothing of"),
    ([], lambda: {"loss": tf.matmul(tf.zeros([2, 3]), tf.zeros([2, 3]))}, "Dimensions must be"),
    ([], lambda: {"loss": tf.zeros([2])}, "'loss' of shape"),
])
@pytest.mark.parametrize("strategy", [[], MIRRORED_2], ids=["default", "mirrored"])
def test_what_cannot_train_is_refused_before_the_first_evaluation(
    bindings, step, message, strategy, tmp_path):
  with pytest.raises((UsageError, ValueError), match=message):
    train(tmp_path, "train.steps = 1", "train.eval_every = 1", *strategy, *bindings,
          step=lambda: step, evaluate=pytest.fail)


def in_scope(scope: str) -> tf.Tensor:
  with gin.config_scope(scope):
    return replicator.microbatch(lambda x: tf.reduce_mean(x), tf.zeros([8]))


def test_an_evaluation_may_use_scopes_of_its_own(tmp_path):
  def evaluates(step):
    return Evaluation({"zero": float(in_scope("evaluation"))})
  train(tmp_path, "train.steps = 1", "train.eval_every = 1", "evaluation/microbatch.n = 2",
        step=lambda: lambda: {"loss": in_scope("critic")}, evaluate=evaluates)
  assert column(tmp_path, "eval/zero") == {0: 0.0, 1: 0.0}


def test_a_batch_that_does_not_divide_is_refused(tmp_path):
  with pytest.raises(UsageError, match="= 9: does not divide by the 2 replicas; write 8 or 10"):
    train(tmp_path, "train.steps = 1", "train.global_batch_size = 9", *MIRRORED_2,
          step=pytest.fail)


def test_precision_is_that_of_the_whole_step(tmp_path):
  def make_step():
    net = network(1)
    return lambda batch: {"bits": tf.cast(8 * net(batch["x"]).dtype.size, "float32"),
                          "weights": tf.cast(8 * net.weights[0].value.dtype.size, "float32")}
  for precision, bits in {"float64": (64, 64), "mixed_bfloat16": (16, 32),
                          "mixed_float16": (16, 32), "float32": (32, 32)}.items():
    train(tmp_path / precision, "train.steps = 1", f"train.precision = '{precision}'",
          step=make_step, inputs=Points())
    row = rows(tmp_path / precision)[0]
    assert (row["bits"], row["weights"]) == bits


# ---- Between calls ------------------------------------------------------------------------------


class Assigned(tf.Module):
  """Returns what was assigned before the call, and its share of the global batch."""

  def __init__(self):
    super().__init__()
    self.value = tf.Variable(-1.0, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)

  def __call__(self) -> dict[str, tf.Tensor]:
    share = tf.constant(replicator.batch_size(), tf.int32)
    return {"value": self.value.read_value(), "share": share}

  def assign(self, step: int) -> None:
    self.value.assign(10.0 + step)


@pytest.mark.parametrize("strategy, share", [([], 8), (MIRRORED_2, 4)])
def test_before_every_call_variables_can_be_assigned(tmp_path, strategy, share):
  config.parse([], [*SMALL, "train.steps = 6", "train.steps_per_call = 2", "train.log_every = 2",
                    *strategy])
  replicator.train(Assigned, before_call=Assigned.assign, workdir=str(tmp_path))
  assert column(tmp_path, "value") == {2: 10.0, 4: 12.0, 6: 14.0}
  assert set(column(tmp_path, "share").values()) == {share}


def test_a_resumed_run_calls_before_call_from_its_step_on(tmp_path):
  for steps in (2, 4):
    config.parse([], [*SMALL, f"train.steps = {steps}", "train.checkpoint_every = 2"])
    replicator.train(Assigned, before_call=Assigned.assign, workdir=str(tmp_path))
  assert column(tmp_path, "value") == {1: 10.0, 2: 11.0, 3: 12.0, 4: 13.0}


def test_the_seconds_of_a_resumed_run_go_on(tmp_path, monkeypatch, capsys):
  now, calls = time.monotonic, []  # Each call seems to take 1,000 seconds.
  monkeypatch.setattr(time, "monotonic", lambda: now() + 1000 * len(calls))
  monkeypatch.setattr(chief, "Progress",
                      functools.partial(Progress, clock=lambda: 1000.0 * len(calls)))
  for steps in (2, 4):
    config.parse([], [*SMALL, f"train.steps = {steps}", "train.checkpoint_every = 2"])
    replicator.train(Assigned, before_call=lambda *call: calls.append(call), workdir=str(tmp_path))
  assert {step: seconds // 1000 for step, seconds in column(tmp_path, "seconds").items()} == {
      1: 1, 2: 2, 3: 3, 4: 4}
  assert "step 3/4  0.001 steps/s" in capsys.readouterr().out  # Only its own steps count.
