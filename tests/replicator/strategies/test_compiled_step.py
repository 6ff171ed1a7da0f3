"""A compiled step: several steps in one call, and the scalars that it logs."""

import re

from replicator import Replicator, all_sum, random, replica_id, step_number, wrap_optimizer
from replicator.strategies.compiled_step import CompiledStep
from replicator.strategies.running_call import RunningCall
from tests.programs.closeness import nests_close
from tests.programs.counter import Counter
from tests.programs.refusals import refusal

import keras
import numpy as np
import pytest
import tensorflow as tf

BATCHES = np.random.default_rng(0).normal(size=[6, 8, 3])


class Regression(tf.Module):
  """A training with everything whose order may matter: an optimizer, noise, the step number."""

  def __init__(self):
    super().__init__()
    self.weights = keras.Variable(np.array([[0.1], [0.2], [0.3]]))
    self.optimizer = wrap_optimizer(
        keras.optimizers.SGD(0.1, momentum=0.9), [self.weights], ema_decay=0.9)

  def __call__(self, batch):
    noise = random.normal("noise", [batch["x"].shape[0], 1])
    with tf.GradientTape() as tape:
      error = tf.matmul(batch["x"], self.weights.value) - 1.0 + noise
      loss = tf.reduce_mean(error ** 2)
    self.optimizer.apply(tape.gradient(loss, [self.weights.value]), [self.weights])
    return {"loss": loss, "number": step_number(), "noise": tf.reduce_mean(noise)}


def train(replicator: Replicator, steps_per_call: int, eagerly=lambda: None):
  """The history of six steps, and the variables after them."""
  with replicator.scope():
    step = Regression()
  eagerly()
  function = CompiledStep(replicator, step, steps_per_call, logs=True)
  calls = BATCHES if steps_per_call == 1 else BATCHES.reshape(-1, steps_per_call, 8, 3)
  histories = [function(steps_per_call * i, {"x": x}).fetch()[0] for i, x in enumerate(calls)]
  history = {name: np.concatenate([h[name] for h in histories]) for name in histories[0]}
  return history, [step.weights.numpy(), step.optimizer.averages[0].numpy()]


def test_replicas_steps_in_one_call_an_eager_call_and_xla_train_the_same(float64, run_eagerly):
  one, mirrored = Replicator("one_device"), Replicator("mirrored", logical_cpus=2)
  expected = train(one, 1)
  assert list(expected[0]["number"]) == list(range(6)) and len(set(expected[0]["noise"])) == 6
  for steps_per_call in (2, 6):
    nests_close(train(one, steps_per_call), expected, 1e-13)
  for replicator, steps_per_call in ((mirrored, 3), (Replicator("mirrored", logical_cpus=4), 1),
                                     (Replicator("central_storage", logical_cpus=2), 3)):
    nests_close(train(replicator, steps_per_call), expected, 1e-12)
  nests_close(train(Replicator("one_device", jit_compile=True), 3), expected, 1e-11)
  nests_close(train(mirrored, 3, run_eagerly), expected, 1e-12)


def call(step, replicator=None, inputs=None, **kwargs):
  return CompiledStep(replicator or Replicator("mirrored", logical_cpus=2), step, 1, logs=True)(
      0, inputs, **kwargs).fetch()


def test_scalars_are_means_over_replicas(synchronous):
  n = synchronous.num_replicas
  def step(batch):
    return {"mean": tf.reduce_mean(batch["x"]), "id": replica_id(), "sum": all_sum(tf.constant(1)),
            "python": 2, "true": tf.constant(True), "nan": tf.constant(np.nan)}
  history, _ = call(step, synchronous, {"x": np.arange(8.0)})
  assert np.isnan(history.pop("nan")).all()
  assert {name: list(values) for name, values in history.items()} == {
      "mean": [3.5], "id": [(n - 1) / 2], "sum": [n], "python": [2], "true": [1]}


def test_unsigned_integers_and_variables_are_counters(synchronous):
  with synchronous.scope():
    counter = Counter()
  step = lambda: {"loss": 1.0, "count": tf.constant(3, tf.uint64), "number": 3,
                  "flag": tf.constant(True), "mean": counter()["count"], "variable": counter.count}
  running = CompiledStep(synchronous, step, 2, logs=True)(0, None)
  history, _ = running.fetch()
  assert running.counters == ["count", "variable"]
  assert history["variable"].tolist() == [1, 2]


@pytest.mark.parametrize("steps_per_call", [1, 2])
@pytest.mark.parametrize("precision", ["float32", "float64", "mixed_bfloat16"])
def test_scalars_are_exact_in_a_run_of_any_precision(set_precision, synchronous, precision,
                                                     steps_per_call):
  set_precision(precision)
  with synchronous.scope():
    frames = tf.Variable(2 ** 24 + 1, dtype=tf.int64)
  step = lambda: {"third": tf.constant(1 / 3, tf.float64), "frames": frames,
                  "drawn": tf.constant(2 ** 52 + 1, tf.uint64)}
  history, _ = CompiledStep(synchronous, step, steps_per_call, logs=True)(0, None).fetch()
  assert {name: {*values} for name, values in history.items()} == {
      "third": {1 / 3}, "frames": {16_777_217}, "drawn": {4_503_599_627_370_497}}


def test_batches_of_ten_shapes_are_a_warning_which_comes_once():
  step = CompiledStep(Replicator(), lambda x: {"sum": tf.reduce_sum(x["x"])}, logs=True)
  lines = []
  for length in [*range(1, 10), *range(1, 10), 10, 11, 12]:
    assert step(0, {"x": np.ones([2, length])}).fetch()[0]["sum"] == 2 * length
    lines += step.warnings()
    assert len(lines) == (length >= 10)
  assert re.search(r"10 batch shapes, .*\(2, 10\).*bucket_by_sequence_length", lines[0])


def test_outputs_that_are_no_dict_of_scalars():
  column = "which is already a column of the log; choose another name"
  for step, message in [
      (lambda: {"ok": 1.0, "loss": [1.0, 2.0]},
       r"the step returned 'loss' of shape \(2,\); return a scalar, such as its tf.reduce_mean"),
      (lambda: {}, "must return a non-empty dict of scalars to log, .* not dict"),
      (lambda: None, "must return a non-empty dict of scalars to log, .* not NoneType"),
      (lambda: tf.constant(0.0), "must return a non-empty dict of scalars"),
      (lambda: {3: 1.0}, "a scalar with the name 3; choose a string"),
      (lambda: {"eval/loss": 1.0}, "a scalar with the name 'eval/loss'; choose a string that does "
       "not begin with 'eval/' or 'system/'"),
      (lambda: {"losses": {"d": 1.0}}, "the step returned 'losses', a dict; return a numeric"),
      (lambda: {"name": "d"}, "the step returned 'name', which is string; return a numeric"),
      *((lambda name=name: {name: 1.0}, f"the step returned '{name}', {column}")
        for name in ("step", "staleness", "seconds", "data_wait"))]:
    assert re.search(message, refusal(call, step))


@pytest.mark.parametrize("share, stops", [(0.0, False), (0.5, True), (1.0, True)])
def test_a_call_stops_all_workers_if_any_of_them_asks(share, stops):
  means = tf.constant([share, 3.0, 4.0, 5.0, 6.0])  # What all workers got, whoever asked.
  for asked in (False, True):
    call = RunningCall((means, {}), 0, asked, {"a": False, "b": False}, 2, ())
    values, agreed = call.fetch()
    assert values["a"].tolist() == [3.0, 5.0] and values["b"].tolist() == [4.0, 6.0]
    assert agreed == stops


@pytest.mark.parametrize("is_eager", [False, True])
def test_a_variable_that_a_step_returns_keeps_the_value_it_had(is_eager, run_eagerly):
  replicator = Replicator("mirrored", logical_cpus=2)
  with replicator.scope():
    own = keras.Variable(0.0, synchronization="on_read", aggregation="only_first_replica")
  if is_eager:
    run_eagerly()

  def step():
    own.value.assign_add(tf.cast(replica_id(), tf.float32) + 1.0)
    return own.value

  first, second = replicator.run(step), replicator.run(step)
  assert [float(x) for x in first] == [1.0, 2.0]
  assert [float(x) for x in second] == [2.0, 4.0]
