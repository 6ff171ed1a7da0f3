"""A run that was stopped, which saves it, and resumed is the run that was not."""

import json
import os
import re
import signal

import replicator
from replicator import Evaluation, atomic, random
from replicator.errors import Preempted
from replicator.training.checkpoints import partial, store
from tests.programs.counter import Counter
from tests.programs.logs import TIMES, rows
from tests.programs.refusals import refusal
from tests.programs.two_networks import Points, network
from tests.replicator.training.checkpoints.runs import CENTRAL_2, assert_equal, train, values
from tests.replicator.training.runs import MIRRORED_2, stopping_at

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing import plugin_event_accumulator


def make_step(has_generator: bool = True):
  """A plain function with everything that a checkpoint keeps in its closure."""
  net = network(1)
  optimizer = replicator.wrap_optimizer(
      keras.optimizers.Adam(0.1), net.trainable_variables, ema_decay=0.9, clip_norm=1.0)
  generator = tf.random.Generator.from_seed(1, alg="philox") if has_generator else None

  def step(batch):
    x = batch["x"] + random.normal("noise", batch["x"].shape)
    with tf.GradientTape() as tape:
      loss = tf.reduce_mean((net(x, training=True) - 1.0) ** 2)
    optimizer.apply(tape.gradient(loss, net.trainable_variables), net.trainable_variables)
    return {"loss": loss, **({"drawn": generator.uniform([])} if generator else {})}

  return step


def test_a_run_that_crashed_and_was_preempted_is_bitwise_the_unbroken_one(tmp_path):
  # It is saved at 10. The sums since the log point at 8 go on, and later those since 12.
  setting = ["train.steps = 20", "train.log_every = 4", "train.checkpoint_every = 10",
             "train.eval_every = 14", "train.steps_per_call = 2", *MIRRORED_2]

  def evaluate(step):
    if replicator.step_number() == 14 and events:
      events.pop(0)()
    return Evaluation({"draw": float(random.normal("draw", [1])[0])})

  def crash():
    raise OSError("the disk is full")

  events: list = []
  unbroken = train(tmp_path / "whole", *setting, step=make_step, inputs=Points(), evaluate=evaluate)
  assert [row["step"] for row in rows(tmp_path / "whole")] == [0, 4, 8, 12, 14, 16, 20]
  events = [crash, lambda: os.kill(os.getpid(), signal.SIGINT)]
  with pytest.raises(OSError, match="the disk is full"):
    train(tmp_path / "parts", *setting, step=make_step, inputs=Points(), evaluate=evaluate)
  assert [row["step"] for row in rows(tmp_path / "parts")] == [0, 4, 8, 12]
  with (tmp_path / "parts" / "metrics.jsonl").open("a") as metrics:
    metrics.write('{"step": 14, "secon')
  with pytest.raises(Preempted, match="stopped at step 16, checkpoint saved") as stopped:
    train(tmp_path / "parts", *setting, step=make_step, inputs=Points(), evaluate=evaluate)
  assert stopped.value.step == 16  # One call after it asked.
  resumed = train(tmp_path / "parts", *setting, step=make_step, inputs=Points(), evaluate=evaluate)
  assert rows(tmp_path / "parts") == rows(tmp_path / "whole")
  assert_equal(resumed, values(unbroken))
  assert {path.partition("/")[0] for path in values(resumed)} == {"net", "optimizer", "generator"}
  facts = json.loads((tmp_path / "parts" / "run.json").read_text())
  assert [entry["step"] for entry in facts["resumed"]] == [10, 16]


def test_a_stop_at_the_first_evaluation_saves_step_0(tmp_path):
  def ask(counter):
    if not store.steps_of(tmp_path / "checkpoints"):
      os.kill(os.getpid(), signal.SIGTERM)
    return Evaluation({"count": counter.count.numpy()})
  with pytest.raises(Preempted, match="stopped at step 0, checkpoint saved"):
    train(tmp_path, "train.steps = 5", step=Counter, evaluate=ask)
  train(tmp_path, "train.steps = 5", step=Counter, evaluate=ask)
  assert [row["eval/count"] for row in rows(tmp_path)] == [0.0, 5.0]


def test_a_stop_at_a_saved_step_keeps_what_was_logged_there(tmp_path):
  # A checkpoint without its scalars could not be the best one any more.
  with pytest.raises(Preempted, match="stopped at step 5, checkpoint saved"):
    train(tmp_path, "train.steps = 10", step=Counter, before_call=stopping_at(4))
  saved = atomic.facts_of(tmp_path / "checkpoints" / "step-00000005")
  assert {name: x for name, x in saved["scalars"].items() if name not in TIMES} == {
      "count": 3.0, "number": 2.0, "replica": 0.0}
  assert saved["loop"]["window"]["sums"] == {}
  assert json.loads((tmp_path / "run.json").read_text())["ended"] == "interrupted"


def test_a_run_continues_on_other_numbers_of_replicas(tmp_path):
  def run(workdir, steps, bindings):
    train(workdir, f"train.steps = {steps}", "train.precision = 'float64'", *bindings,
          step=lambda: make_step(has_generator=False), inputs=Points())

  run(tmp_path / "whole", 10, [])
  run(tmp_path / "parts", 5, CENTRAL_2)
  run(tmp_path / "parts", 10, [*MIRRORED_2, "train.steps_per_call = 5"])
  for found, expected in zip(rows(tmp_path / "parts"), rows(tmp_path / "whole"), strict=True):
    assert found == pytest.approx(expected, rel=1e-9)


def test_a_run_is_not_resumed_with_other_examples(tmp_path, capfd, monkeypatch):
  def run(size, steps, digest=None):
    points = Points()
    points.size = size
    if digest:
      points.digest = lambda: digest
    train(tmp_path, f"train.steps = {steps}", inputs=points,
          step=lambda: lambda batch: {"mean": tf.reduce_mean(batch["x"])})

  remedy = ("restore the old data, choose another --workdir, or continue with this data with "
            "--allow_partial_restore")
  run(50, 5)
  assert refusal(run, 49, 10) == (
      "--workdir: the run was saved with 50 examples, but the data has 49, so its steps would get "
      f"different ones; {remedy}")
  run(50, 10, "one")  # The checkpoint has no digest, as those of earlier versions.
  run(50, 15, "one")
  line = ("--workdir: the run was saved with different data: the number of examples is the same, "
          "but not their names, sizes and labels, or not their order, so its steps would get "
          "different ones")
  assert refusal(run, 50, 20, "other") == f"{line}; {remedy}"
  capfd.readouterr()
  with monkeypatch.context() as patched:
    patched.setattr(partial, "_allowed", True)
    run(50, 20, "other")
  assert f"warning: --allow_partial_restore: {line}\n" in capfd.readouterr().err
  run(50, 25, "other")
  run(50, 30)  # The source says nothing any more.
  assert [row["step"] for row in rows(tmp_path)] == [5, 10, 15, 20, 25, 30]


def test_a_checkpoint_is_never_ahead_of_the_log_on_the_disk(tmp_path, monkeypatch):
  forced, sync = [], os.fsync

  def fsync(descriptor):
    forced.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
    sync(descriptor)

  monkeypatch.setattr(os, "fsync", fsync)
  train(tmp_path, "train.steps = 10", "train.log_every = 1", step=Counter)
  # Another thread writes checkpoints, and may be late.
  for number, step in enumerate(("step-00000005", "step-00000010"), start=1):
    written = next(i for i, name in enumerate(forced) if "tmp" in name and name.endswith(step))
    assert forced[:written].count("metrics.jsonl") >= number


def test_pictures_after_the_last_checkpoint_are_removed(tmp_path):
  def draw(counter):
    if (step := counter.count.numpy()) == 8 and not (tmp_path / "again").exists():
      raise KeyboardInterrupt
    return Evaluation({"twice": 2 * step}, {"samples": np.zeros([2, 2, 3], np.uint8)})

  setting = ["train.eval_every = 2", "train.checkpoint_every = 3"]
  with pytest.raises(KeyboardInterrupt):
    train(tmp_path, "train.steps = 10", *setting, step=Counter, evaluate=draw)
  (tmp_path / "again").touch()
  train(tmp_path, "train.steps = 6", *setting, step=Counter, evaluate=pytest.fail)
  assert [row["step"] for row in rows(tmp_path)] == [0, 2, 4, 5, 6]
  assert len(list((tmp_path / "samples").iterdir())) == 4
  train(tmp_path, "train.steps = 10", *setting, step=Counter, evaluate=draw)
  # TensorBoard takes files of the same second in the order of their names; their number is last.
  files = sorted(tmp_path.glob("events.*"), key=lambda path: int(path.name.split(".")[-2]))
  (tmp_path / "events.out.tfevents").write_bytes(b"".join(path.read_bytes() for path in files))
  events = plugin_event_accumulator.EventAccumulator(str(tmp_path / "events.out.tfevents"))
  events.Reload()
  assert [event.step for event in events.Tensors("eval/twice")] == [0, 2, 4, 6, 8, 10]


def test_a_finished_run_stays_as_it_is(tmp_path, capsys):
  step = train(tmp_path, "train.steps = 5", *MIRRORED_2, step=Counter,
               evaluate=lambda step: Evaluation({"mean": 1.0}, method="mean of 8 samples"))
  files = ("metrics.jsonl", "config.gin")
  before = {name: (tmp_path / name).read_text() for name in files}
  facts = json.loads((tmp_path / "run.json").read_text())
  for steps in (5, 3):
    capsys.readouterr()
    again = train(tmp_path, f"train.steps = {steps}", step=Counter, evaluate=pytest.fail)
    assert {name: (tmp_path / name).read_text() for name in files} == before
    assert json.loads((tmp_path / "run.json").read_text()) == facts
    assert capsys.readouterr().out.splitlines() == [
        f"resumed at step 5: nothing is left to train, since train.steps = {steps} is not above it",
        f"done: {tmp_path / 'report.html'}"]
    assert_equal(again, values(step))


class Slope(tf.Module):
  """Descends the line `w`: each update has the size of the rate. It may halve the rate itself."""

  def __init__(self, rate: float, halves: bool = False):
    super().__init__()
    self.w = keras.Variable(1.0)
    self.optimizer = replicator.wrap_optimizer(keras.optimizers.SGD(rate), [self.w])
    self.halves = halves

  def __call__(self) -> dict[str, tf.Tensor]:
    loss = self.optimizer.minimize(lambda: tf.identity(self.w.value))
    if self.halves:
      rate = self.optimizer.keras_optimizer.learning_rate
      rate.assign(rate / 2)
    return {"loss": loss}


@pytest.mark.parametrize("strategy", [[], MIRRORED_2])
def test_a_run_resumes_with_the_learning_rate_of_its_configuration(strategy, tmp_path):
  first = train(tmp_path, "train.steps = 1", *strategy, step=lambda: Slope(0.25))
  assert first.w.numpy() == 1.0 - 0.25
  second = train(tmp_path, "train.steps = 2", *strategy, step=lambda: Slope(0.125))
  assert second.w.numpy() == 1.0 - 0.25 - 0.125
  third = train(tmp_path, "train.steps = 3", *strategy, step=lambda: Slope(0.125))
  assert third.w.numpy() == 1.0 - 0.25 - 2 * 0.125


def test_a_learning_rate_that_the_step_assigns_is_a_part_of_its_state(tmp_path):
  make_step = lambda: Slope(0.5, halves=True)
  train(tmp_path, "train.steps = 1", step=make_step)
  assert train(tmp_path, "train.steps = 2", step=make_step).w.numpy() == 1.0 - 0.5 - 0.25


class Pair(tf.Module):
  """Two networks of one shape and an optimizer with moments; any order, any optimizer."""

  def __init__(self, make_optimizer=lambda: keras.optimizers.Adam(0.1), names="ab", net=None):
    super().__init__()
    self.net = net or PairLayer(names)
    self.net.build([None, 1])
    self.optimizer = replicator.wrap_optimizer(make_optimizer(), self.net.trainable_variables)

  def __call__(self) -> dict[str, tf.Tensor]:
    weights = [v.value for v in self.net.trainable_variables]
    loss = lambda: tf.add_n([tf.reduce_sum(tf.square(w - 0.5)) for w in weights])
    return {"loss": self.optimizer.minimize(loss)}


class PairLayer(keras.layers.Layer):
  def __init__(self, names: str):
    super().__init__()
    for name in names:
      setattr(self, name, keras.layers.Dense(1, use_bias=False))

  def build(self, shape):
    for layer in self._flatten_layers(include_self=False):
      layer.build(shape)
    super().build(shape)


class UnnamedPair(keras.layers.Layer):
  def build(self, shape):
    self._first, self._second = (self.add_weight(shape=[1, 1]) for _ in range(2))


def decaying(rate: float = 0.1) -> keras.optimizers.Optimizer:
  return keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(rate, 1, 1.0))


@pytest.mark.parametrize("then, now", [(lambda: keras.optimizers.Adam(0.1), decaying),
                                       (decaying, lambda: keras.optimizers.Adam(0.1))])
def test_the_moments_of_an_optimizer_outlive_a_rate_that_becomes_a_schedule(then, now, tmp_path):
  whole = train(tmp_path / "whole", "train.steps = 10", step=lambda: Pair(then))
  train(tmp_path / "run", "train.steps = 5", step=lambda: Pair(then))
  resumed = train(tmp_path / "run", "train.steps = 10", step=lambda: Pair(now))
  for a, b in zip(resumed.net.variables, whole.net.variables, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-6)


def test_the_slots_of_another_optimizer_are_no_slots(tmp_path):
  train(tmp_path, "train.steps = 5", step=lambda: Pair(lambda: keras.optimizers.SGD(0.1, 0.9)))
  refused = refusal(train, tmp_path, "train.steps = 10",
                    step=lambda: Pair(lambda: keras.optimizers.RMSprop(0.1)))
  assert re.search(r"2 variables do not fit this step: 'optimizer/keras_\w+/002' is not in the "
                   r"checkpoint, 'optimizer/keras_\w+/momentums/0' is only in the checkpoint",
                   refused)


def test_a_weight_in_the_place_of_another_one_is_refused(tmp_path):
  train(tmp_path, "train.steps = 5", step=Pair)
  refused = refusal(train, tmp_path, "train.steps = 10", step=lambda: Pair(names="ba"))
  assert "'net/000' was net/a/kernel and is net/b/kernel" in refused
  # Another name for the same weight, which a rewritten program may have.
  train(tmp_path, "train.steps = 10", step=lambda: Pair(names="cd"))


def test_weights_without_a_name_are_those_of_before_in_any_process(tmp_path):
  train(tmp_path, "train.steps = 5", step=lambda: Pair(net=UnnamedPair()))
  keras.Variable(0.0)  # Keras numbers all variables without a name.
  train(tmp_path, "train.steps = 10", step=lambda: Pair(net=UnnamedPair()))


@pytest.mark.parametrize("steps_per_call, better", [(2, 1), (6, 3)])
def test_calls_must_reach_the_steps_that_are_due(steps_per_call, better, tmp_path):
  schedule = ["train.log_every = 6", "train.checkpoint_every = 6", "train.eval_every = 0"]
  train(tmp_path, "train.steps = 3", step=Counter)
  refused = refusal(train, tmp_path, "train.steps = 12", *schedule,
                    f"train.steps_per_call = {steps_per_call}", step=Counter)
  assert refused == (f"train.steps_per_call = {steps_per_call}: does not divide step 3, where the "
                     "run resumes, so no call would end at a step where something is due; use "
                     f"{better}")
  counter = train(tmp_path, "train.steps = 12", *schedule, f"train.steps_per_call = {better}",
                  step=Counter)
  assert counter.count.numpy() == 12


def test_what_is_drawn_before_a_call_goes_on(tmp_path):
  def draws(workdir, *stops: int) -> list[float]:
    drawn = []
    for steps in stops:
      train(workdir, f"train.steps = {steps}", step=Counter, before_call=lambda step, number: (
          drawn.extend(random.normal("z", [1]).numpy().tolist())))
    return drawn

  whole = draws(tmp_path / "whole", 6)
  assert draws(tmp_path / "run", 3, 6) == whole and len(set(whole)) == 6
