"""Copies of a variable that have parted are found, named and refused."""

import pathlib
import re

import replicator
from replicator import GlobalBatchNorm, SpectralNorm, UsageError
from replicator.step.replicated import copies_of
from replicator.training.checkpoints import store
from replicator.training.checkpoints.replica_checksums import parted
from tests.programs.fragile import numbers
from tests.programs.processes import ROOT
from tests.programs.refusals import refusal
from tests.replicator.training import runs

import keras
import numpy as np
import pytest
import tensorflow as tf

# ---- The checksum -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [tf.bool, tf.uint8, tf.int64, tf.float16, tf.bfloat16, tf.float32,
                                   tf.float64, tf.string], ids=lambda dtype: dtype.name)
def test_a_variable_of_any_type_and_size_is_compared_to_its_end(dtype, two):
  # Some do not fill their last word, and the last has more than is summed at once.
  for size in (2, 3, 4, 5, 2 ** 20 + 3):
    is_even = np.arange(size) % 2 == 0
    values = (tf.constant(np.where(is_even, "a", "b")) if dtype == tf.string
              else tf.cast(is_even, dtype))
    with two.scope():
      variable = tf.Variable(values)
    assert parted({"it": variable}) == []
    copies_of(variable)[1].assign(tf.concat([values[:-2], values[-1:], values[-2:-1]], 0))
    assert parted({"it": variable}) == ["it"]


def test_two_zeros_are_two_values_and_no_number_is_one(two):
  with two.scope():
    zero, words, lost = (tf.Variable(each) for each in ([0.0], ["a", "b"], [np.nan, -0.0]))
    nothing = tf.Variable(tf.zeros([0, 3]))
  copies_of(zero)[1].assign([-0.0])
  copies_of(words)[0].assign(["b", "a"])
  found = parted({"nothing": nothing, "zero": zero, "lost": lost, "words": words})
  assert found == ["zero", "words"]  # And no other.


@pytest.mark.parametrize("offset, found", [(0, []), (1, ["own"])])
def test_workers_with_one_replica_each_are_compared(offset, found):
  class Workers:
    """Two processes; the checksums of the second are `offset` away from those of this one."""
    num_pipelines = 2

    def joined(self, checksums):
      return np.concatenate([checksums, checksums + offset])

  with tf.distribute.MirroredStrategy(["cpu:0"]).scope():
    own = tf.Variable([1.0, 2.0])
  assert parted({"own": own}, Workers()) == found


# ---- A training ---------------------------------------------------------------------------------


class Assigning(tf.Module):
  """Assigns what `value` returns of this replica's examples to a variable, by `change`."""

  def __init__(self, change=lambda own, value: own.assign(value), value=tf.reduce_mean, **kwargs):
    super().__init__()
    self._change, self._value = change, value
    self.own = tf.Variable(0.0, trainable=False, **kwargs)

  def __call__(self, batch):
    value = self._value(batch["x"])
    self._change(self.own, value)
    return {"own": self.own.read_value()}


class Layers(tf.Module):
  """Runs layers in training mode."""

  def __init__(self, *layers: keras.Layer):
    super().__init__()
    self.network = keras.Sequential([keras.Input([1]), *layers])

  def __call__(self, batch):
    outputs = self.network(batch["x"][:, tf.newaxis], training=True)
    return {"mean": tf.reduce_mean(outputs)}


def train(workdir, make_step, *bindings: str):
  runs.train(workdir, "train.steps = 2", "train.log_every = 2", "train.checkpoint_every = 2",
             *runs.MIRRORED_2, *bindings, step=make_step, inputs=numbers)


def test_a_variable_that_parts_is_refused_with_its_line(tmp_path):
  refused = refusal(train, tmp_path, Assigning, "train.steps_per_call = 2")
  source = pathlib.Path(__file__).read_text().splitlines()
  line = next(number for number, text in enumerate(source, 1) if "own.assign(value)," in text)
  assert refused.startswith(
      "the variable 'own' (Variable) has a different value on each replica, but a checkpoint keeps "
      "one: each replica assigns a value computed from its own examples at "
      f"{pathlib.Path(__file__).relative_to(ROOT)}:{line}; average it first with "
      "replicator.all_mean")
  assert store.steps_of(tmp_path / "checkpoints") == []


def test_a_variable_that_parts_later_is_refused_when_it_is_saved(tmp_path):
  late = lambda own, value: own.assign(tf.where(replicator.step_number() < 2, 0.0, value))
  with pytest.raises(UsageError, match=r"the variable 'own' .* at tests/replicator/"):
    train(tmp_path, lambda: Assigning(late), "train.steps = 4")
  assert store.steps_of(tmp_path / "checkpoints") == [2]


@pytest.mark.parametrize("make", [
    lambda: Assigning(aggregation=tf.VariableAggregation.MEAN),
    lambda: Assigning(synchronization=tf.VariableSynchronization.ON_READ),
    lambda: Layers(SpectralNorm(keras.layers.Dense(2)), GlobalBatchNorm())],
    ids=["mean", "own", "layers"])
def test_what_the_remedy_says_is_saved(make, tmp_path):
  train(tmp_path, make)
  assert store.steps_of(tmp_path / "checkpoints") == [2]


def test_a_keras_batch_norm_is_told_what_to_use(tmp_path):
  refused = refusal(train, tmp_path, lambda: Layers(keras.layers.BatchNormalization()))
  # Keras numbers the layers of a process.
  assert re.search(r"batch_normalization\w*/moving_mean\) has a different value on each", refused)
  assert refused.endswith("use replicator.GlobalBatchNorm")
