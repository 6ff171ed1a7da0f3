"""Variables of which every replica keeps a copy, read and changed by plain code and by steps."""

import contextlib

from replicator import Replicator, all_mean, microbatch, replicated, wrap_optimizer

import keras
import numpy as np
import pytest
import tensorflow as tf


def built(replicator: Replicator, value, **options) -> tf.Variable:
  with replicator.scope():
    return replicated.variable(value, **options)


def seen_by_replicas(replicator: Replicator, variable: tf.Variable) -> list[list]:
  return [value.numpy().tolist() for value in replicator.run(lambda: tf.identity(variable))]


def test_a_variable_has_the_dtype_of_its_value_or_the_one_asked_for(one_or_two):
  for value, dtype, expected in (
      (3, None, "int64"), (np.float32([1, 2]), None, "float32"),
      (np.zeros(2), "float32", "float32"),
      (lambda: tf.fill([2], tf.constant(7, tf.int32)), None, "int32")):
    variable = built(one_or_two, value, dtype=dtype, name="state")
    assert variable.dtype == expected
    assert not variable.trainable
    np.testing.assert_array_equal(replicated.read(variable), value() if callable(value) else value)


def test_plain_code_writes_every_copy(synchronous):
  variable = built(synchronous, np.arange(4.0))
  replicated.read(variable)[:] = 5.0  # What is read is a copy.
  assert replicated.read(variable).tolist() == [0.0, 1.0, 2.0, 3.0]
  replicated.assign(variable, [5, 6, 7, 8])
  assert seen_by_replicas(synchronous, variable) == [[5, 6, 7, 8]] * synchronous.num_replicas
  replicated.assign(variable, np.ones(4), where=np.array([[0], [3]]))
  assert seen_by_replicas(synchronous, variable) == [[1, 6, 7, 1]] * synchronous.num_replicas
  replicated.assign(variable, np.zeros(4), where=np.zeros([0, 1], np.int64))
  assert replicated.read(variable).tolist() == [1, 6, 7, 1]


def test_a_variable_may_grow(synchronous):
  variable = built(synchronous, np.zeros([2, 1, 3]), shape=[2, None, 3])
  longer = np.arange(12.0).reshape(2, 2, 3)
  replicated.assign(variable, longer)
  np.testing.assert_array_equal(replicated.read(variable), longer)
  longer[1, 1] = 7.0
  replicated.assign(variable, longer, where=np.array([[1, 1]]))
  for found in seen_by_replicas(synchronous, variable):
    np.testing.assert_array_equal(found, longer)


def add_at(copies: list[tf.Variable], index: tf.Tensor) -> None:
  numbers, calls = copies
  numbers.scatter_add(tf.IndexedSlices(tf.ones_like(index), index))
  calls.assign_add(1)


def test_plain_code_changes_all_copies_in_place(synchronous):
  numbers, calls = built(synchronous, np.zeros(4, np.int32)), built(synchronous, np.int32(0))
  change = lambda index: replicated.update([numbers, calls], add_at, index)
  for i, function in enumerate((change, tf.function(change, autograph=False)), start=1):
    function(tf.constant([1, 3]))
    assert seen_by_replicas(synchronous, numbers) == [[0, i, 0, i]] * synchronous.num_replicas
    assert seen_by_replicas(synchronous, calls) == [i] * synchronous.num_replicas


@pytest.mark.parametrize("n, scope", [
    (1, "step"), (4, "step"), (4, "averaged weights")])  # Which drop changes of Keras variables.
def test_an_average_moves_once_for_each_batch(float64, one_or_two, n, scope):
  average = built(one_or_two, 5.0)
  with one_or_two.scope():
    optimizer = wrap_optimizer(keras.optimizers.SGD(), [keras.Variable(1.0)], ema_decay=0.5)

  def seen_and_moved(x):
    with optimizer.averaged_weights() if scope != "step" else contextlib.nullcontext():
      before = replicated.before(average)
      change = replicated.average_change(before, all_mean(tf.reduce_mean(x)), share=0.25)
      replicated.update([average], lambda copies, change: copies[0].assign_add(change), change)
    return before, tf.cast(replicated.num_microbatches(), before.dtype)

  expected, batches = 5.0, np.random.default_rng(0).normal(size=[3, 8])
  for batch in batches:
    for found in one_or_two.run(lambda x: tf.stack(microbatch(seen_and_moved, x, n)), batch):
      np.testing.assert_allclose(found, [expected, n])
    expected += 0.25 * (batch.mean() - expected)
    np.testing.assert_allclose(replicated.read(average), expected)
