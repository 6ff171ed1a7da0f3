"""Python attributes that a compiled step keeps are found when they change, if it read them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator.app import config
from replicator.tracing.attributes import FrozenAttributes

pytestmark = pytest.mark.usefixtures("restored", "without_curves")


class Settings:
  """A plain object."""

  def __init__(self):
    self.rate = 0.5
    self.unread = 1


class Step(tf.Module):
  """Reads attributes of many kinds."""

  def __init__(self):
    super().__init__()
    self.scale, self.kind, self.missing = 2.0, "a", None
    self.weights = {"a": [1.0, 2.0], "b": (3, 4)}
    self.table = np.arange(3.0)
    self.settings = Settings()
    self.calls = 0
    self.episodes = [0]
    self.layers = [keras.Sequential([keras.Input([3]), keras.layers.Dropout(0.5)])]
    self.variable = tf.Variable(1.0)

  def __call__(self) -> dict[str, tf.Tensor]:
    self.calls += 1  # Only when it is traced.
    factor = self.scale * self.weights[self.kind][0] * self.settings.rate
    if self.missing is None:
      factor *= self.variable
    return {"loss": factor * tf.reduce_sum(self.layers[0](self.table[None], training=True))}


def frozen(step: Step) -> FrozenAttributes:
  found = FrozenAttributes(step)
  with found.recorded():
    tf.function(step, autograph=False).get_concrete_function()
  return found


def set_to(step: Step, name: str, value: object) -> None:
  setattr(step, name, value)


@pytest.mark.parametrize("change, expected", [
    (lambda s: set_to(s, "scale", 3.0), {"scale": ("2.0", "3.0")}),
    (lambda s: set_to(s, "scale", 2), {"scale": ("2.0", "2")}),
    (lambda s: set_to(s, "kind", "b"), {"kind": ("'a'", "'b'")}),
    (lambda s: set_to(s, "missing", True), {"missing": ("None", "True")}),
    (lambda s: s.weights["a"].append(5), {"weights": ("{'a': [1.0, 2.0], 'b': (3, 4)}",
                                                      "{'a': [1.0, 2.0, 5], 'b': (3, 4)}")}),
    (lambda s: s.table.fill(1), {"table": ("array([0., 1., 2.])", "array([1., 1., 1.])")}),
    (lambda s: set_to(s.settings, "rate", 0.1), {"settings.rate": ("0.5", "0.1")}),
    (lambda s: set_to(s.layers[0].layers[0], "rate", 0.1),
     {"layers.0.dropout.rate": ("0.5", "0.1")})])
def test_an_attribute_that_was_read_and_changed_is_named(change, expected):
  keras.backend.clear_session()
  step = Step()
  found = frozen(step)
  assert found.changed() == {}
  change(step)
  assert found.changed() == expected


def test_what_the_step_did_not_read_may_change():
  step = Step()
  found = frozen(step)
  step.episodes.append(1)
  step.settings.unread = 2
  step.new = 3
  step.variable.assign(2.0)
  step.scale, step.weights = 1.0 + 1.0, {"a": [1.0, 2.0], "b": (3, 4)}  # Equal values.
  assert found.changed() == {}


def test_what_keras_keeps_for_itself_may_change():
  step = Step()
  found = frozen(step)
  step.layers[0]._called = False  # Keras reads and sets it in every call.
  assert found.changed() == {}


def read(step: object, *names: str) -> FrozenAttributes:
  """What is found where a step reads these attributes, and does nothing else."""
  found = FrozenAttributes(step)
  with found.recorded():
    for name in names:
      getattr(step, name)
  return found


@pytest.mark.parametrize("value, is_data", [
    (np.zeros(2 ** 14), True), ([0] * 1001, True), (np.array([None]), True), ([Settings()], True),
    (np.zeros(2 ** 12), False), ([0] * 1000, False), (np.float32(0), False)])
def test_what_is_large_or_no_number_is_not_compared(value, is_data):
  step = tf.Module()
  step.value = value
  found = read(step, "value")
  step.value = 1.0
  assert (found.changed() == {}) == is_data


def test_an_attribute_that_is_gone_is_named_and_a_long_value_is_cut():
  step = Settings()
  step.name = "x" * 60
  step.word = "y" * 38
  found = read(step, "rate", "name", "word")
  del step.rate
  step.name, step.word = step.word, step.name
  assert found.changed() == {"rate": ("0.5", "None"),
                             "name": (f"'{'x' * 36}...", f"'{'y' * 38}'"),
                             "word": (f"'{'y' * 38}'", f"'{'x' * 36}...")}


def test_the_classes_are_as_they_were():
  class Own(Step):
    def __getattribute__(self, name: str) -> object:
      return super().__getattribute__(name)

  before = Own.__getattribute__
  frozen(Own())
  assert Own.__getattribute__ is before
  assert "__getattribute__" not in vars(Step) | vars(Settings) | vars(keras.layers.Dropout)


# ---- A training ---------------------------------------------------------------------------------


class Loss(tf.Module):
  def __init__(self, calls_python: bool = False):
    super().__init__()
    self.scale, self.steps = 1.0, 0
    self.calls_python = calls_python
    self.seen: list[int] = []

  def __call__(self) -> dict[str, tf.Tensor]:
    loss = tf.constant(self.scale)
    if self.calls_python:
      loss += tf.reshape(tf.numpy_function(self.count, [], tf.float32), [])
    return {"loss": loss}

  def count(self) -> np.ndarray:
    self.seen.append(0)
    return np.float32(len(self.seen))


def warnings(capsys, tmp_path, step: Loss, before_call=None, *bindings: str) -> list[str]:
  config.parse([], ["train.steps = 6", "train.log_every = 2", "train.checkpoint_every = 0",
                    *bindings])
  replicator.train(lambda: step, before_call=before_call, workdir=str(tmp_path))
  return [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]


def anneal(step: Loss, number: int) -> None:
  step.steps += 1
  if number > 1:
    step.scale = 1.0 / 2 ** (number // 2)


@pytest.mark.parametrize("bindings", [[], ["Replicator.strategy = 'mirrored'",
                                           "Replicator.logical_cpus = 2"]], ids=["one", "mirrored"])
def test_a_training_warns_once_of_an_attribute(bindings, capsys, tmp_path):
  assert warnings(capsys, tmp_path, Loss(), anneal, *bindings) == [
      "warning: the attribute 'scale' was 1.0 when the step was compiled and is 0.5 now: the "
      "compiled step goes on with 1.0, and no checkpoint keeps 0.5; make it a tf.Variable, and "
      "assign to it"]


def test_an_eager_step_sees_what_changed(capsys, tmp_path, run_eagerly):
  run_eagerly()
  assert warnings(capsys, tmp_path, Loss(), anneal) == []


@pytest.mark.parametrize("steps_per_call", [1, 2])
def test_a_training_warns_of_python_in_the_compiled_step(steps_per_call, capsys, tmp_path):
  found = warnings(capsys, tmp_path, Loss(calls_python=True), None,
                   f"train.steps_per_call = {steps_per_call}")
  assert [line.partition(": what")[0].rpartition(":")[0] for line in found] == [
      "warning: tf.numpy_function at tests/replicator/tracing/test_attributes.py"]
