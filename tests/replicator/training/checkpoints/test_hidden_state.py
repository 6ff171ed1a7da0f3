"""State in layers, metrics, objects and closures is saved; other state is refused with its line."""

import collections
import dataclasses
import types
from typing import Any

import replicator
from replicator import UsageError, replicated
from tests.programs.refusals import refusal
from tests.replicator.training.checkpoints.runs import train
from tests.replicator.training.runs import MIRRORED_2, column

import keras
import pytest
import tensorflow as tf


def count() -> tf.Variable:
  return replicated.variable(0.0, keras.config.floatx(), name="hidden")


class CountingLayer(keras.layers.Layer):
  """Returns how often it was called, by a count that `holder` keeps somewhere in the layer."""

  def __init__(self, holder, count):
    super().__init__()
    self.inside, self.count = holder, count

  def call(self, x):
    return x * 0 + self.count(self.inside).assign_add(1.0)


class CountingModel(keras.Model):
  """As the layer, and a step itself."""

  def __init__(self):
    super().__init__()
    self.parts = [{"count": count()}]

  def train_step(self):
    return {"count": self.parts[0]["count"].assign_add(1.0)}


class CalledModel(CountingModel):
  """The same, with `call`, and another use of `train_step` in Keras."""

  train_step = keras.Model.train_step

  def call(self):
    return CountingModel.train_step(self)


class Module(tf.Module):
  def __init__(self):
    super().__init__()
    self.v = count()


class Plain:
  def __init__(self):
    self.v = count()


@dataclasses.dataclass(slots=True)
class Slots:
  v: Any


Pair = collections.namedtuple("Pair", "first second")


class Holder(tf.Module):
  """A step that returns the count of calls that something keeps."""

  def __init__(self, held, step):
    super().__init__()
    self.held, self.step = held, step

  def __call__(self):
    return {"count": self.step(self.held)}


def counted(v) -> tf.Tensor:
  return v.assign_add(1.0)


def of_layer(inside, find=lambda inside: inside) -> Holder:
  """The count is in a layer of a network."""
  net = keras.Sequential([keras.Input([1]), CountingLayer(inside, find)])
  return Holder(net, lambda net: tf.reduce_sum(net(tf.zeros([1, 1]))))


def of_lambda() -> Holder:
  v = count()
  net = keras.Sequential([keras.Input([1]), keras.layers.Lambda(lambda x: x + counted(v))])
  return Holder(net, lambda net: tf.reduce_sum(net(tf.zeros([1, 1]))))


def of_metric(metric) -> tf.Tensor:
  metric.update_state(1.0 / replicator.num_replicas())
  return metric.result() * replicator.num_replicas()


KEPT = {
    "dataclass": lambda: Holder(Slots([count()]), lambda held: counted(held.v[0])),
    "namedtuple": lambda: Holder({"a": Pair(1, (count(),))},
                                 lambda held: counted(held["a"].second[0])),
    "namespace": lambda: Holder([types.SimpleNamespace(v=count())],
                                lambda held: counted(held[0].v)),
    "plain object": lambda: Holder(Plain(), lambda held: counted(held.v)),
    "metric": lambda: Holder(keras.metrics.Sum(), of_metric),
    "variable in a layer": lambda: of_layer(count()),
    "list in a layer": lambda: of_layer([{"v": count()}], lambda inside: inside[0]["v"]),
    "module in a layer": lambda: of_layer(Module(), lambda inside: inside.v),
    "dataclass in a layer": lambda: of_layer(Slots(Plain()), lambda inside: inside.v.v),
    "closure of a Lambda": of_lambda,
    "keras.Model": CountingModel,
    "keras.Model with call": CalledModel,
    "method of a keras.Model": lambda: CountingModel().train_step}


@pytest.mark.parametrize("kind", KEPT)
def test_state_anywhere_in_a_step_goes_on(kind, tmp_path):
  bindings = MIRRORED_2 if kind in ("dataclass", "metric", "keras.Model") else []
  for steps in (2, 4):  # The second time it resumes.
    train(tmp_path, f"train.steps = {steps}", "train.log_every = 1", *bindings, step=KEPT[kind])
  assert column(tmp_path, "count") == {1: 1, 2: 2, 3: 3, 4: 4}


def test_the_state_of_a_recurrent_layer_goes_on(tmp_path):
  def make_step():
    layer = keras.layers.SimpleRNN(1, None, kernel_initializer="ones", use_bias=False,
                                   recurrent_initializer="ones", stateful=True)
    net = keras.Sequential([keras.Input([1, 1], batch_size=1), layer])
    return Holder(net, lambda net: tf.reduce_sum(net(tf.ones([1, 1, 1]))))
  for steps in (2, 4):
    train(tmp_path, f"train.steps = {steps}", "train.log_every = 1", step=make_step)
  assert column(tmp_path, "count") == {1: 1, 2: 2, 3: 3, 4: 4}


# ---- What is refused ----------------------------------------------------------------------------


def table() -> tf.lookup.experimental.MutableHashTable:
  return tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)


def changes_table(held) -> tf.Tensor:
  held.insert([1], [2])
  return tf.zeros([])


def queue() -> tf.queue.FIFOQueue:
  return tf.queue.FIFOQueue(9, [tf.int64], [[]])


def changes_queue(held) -> tf.Tensor:
  held.enqueue(1)
  return tf.zeros([])


def numbers():
  return iter(tf.data.Dataset.range(9))


@pytest.mark.parametrize("make, kind", [
    (table, "MutableHashTable.*StaticHashTable"), (queue, "FIFOQueue.*replicated"),
    (lambda: tf.lookup.experimental.DenseHashTable(tf.int64, tf.int64, 0, -1, -2),
     "DenseHashTable"), (numbers, "OwnedIterator.*inputs")],
    ids=["table", "queue", "dense table", "iterator"])
def test_other_state_is_named(make, kind, tmp_path):
  for step in (lambda: Holder([make()], len), lambda: Holder(CountingLayer(make(), len), len)):
    with pytest.raises(UsageError, match=f"(held/0|inside)', a {kind}"):
      train(tmp_path, "train.steps = 1", step=step)


class Outside(tf.Module):
  """A step that uses what an attribute of its class keeps."""

  kept: tuple = ()

  def __init__(self, held, step):
    super().__init__()
    type(self).kept, self.step = (held,), step

  def __call__(self):
    return {"count": self.step(type(self).kept[0])}


@pytest.mark.parametrize("make, step, what", [
    (table, changes_table, "a lookup table"), (queue, changes_queue, "a queue"),
    (numbers, next, "the iterator of a data set"), (count, counted, "the variable 'hidden'")],
    ids=["table", "queue", "iterator", "variable"])
def test_state_that_nothing_leads_to_is_named_with_the_line(make, step, what, tmp_path):
  said = refusal(train, tmp_path, "train.steps = 1", step=lambda: Outside(make(), step))
  assert what in said and "test_hidden_state.py:" in said and "would lose it" in said


def test_what_never_changes_is_no_state(tmp_path):
  def make_step():
    constant = tf.lookup.KeyValueTensorInitializer([1], [2.0])
    held = [tf.data.Dataset.range(3), tf.function(lambda x: x + 1),
            tf.lookup.StaticHashTable(constant, 0.0), keras.layers.StringLookup(vocabulary=["a"])]
    return Holder(held, lambda held: held[1](held[2].lookup(tf.constant(1))))
  train(tmp_path, "train.steps = 1", step=make_step)
  assert column(tmp_path, "count") == {1: 3}
