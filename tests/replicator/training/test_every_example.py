"""Means over a whole source count each example once, on any number of replicas."""

import numpy as np
import pytest
import tensorflow as tf

from replicator import EveryExample, Replicator, UsageError, all_sum, replica_id
from replicator.step import context

SIZE = 1003
WEIGHTS = np.random.default_rng(0).normal(size=SIZE)  # No two sums of them are alike.


class Numbers:
  """1,003 examples, each its own number."""

  size = SIZE

  def load(self, index: tf.Tensor) -> tf.Tensor:
    return index


@pytest.fixture(autouse=True)
def clean():
  put_back = context.remember_run()
  yield
  put_back()


def measured(numbers: tf.Tensor) -> dict[str, tf.Tensor]:
  return {"weight": tf.gather(tf.constant(WEIGHTS), numbers), "is_low": numbers < 17,
          "is_first_replica": tf.ones_like(numbers) * tf.cast(replica_id() == 0, tf.int64)}


@pytest.mark.parametrize("replicas, batch_size", [(1, 256), (7, 256), (2, 64), (7, 2000)])
def test_each_example_counts_once(replicas, batch_size):
  Replicator("mirrored", logical_cpus=replicas)
  found = EveryExample(Numbers(), batch_size).mean(measured)
  np.testing.assert_allclose(found["weight"], WEIGHTS.mean(), rtol=1e-12)
  assert found["is_low"] == 17 / SIZE
  # All replicas take part, and equally.
  assert abs(found["is_first_replica"] - 1 / replicas) <= 256 / SIZE * (replicas > 1)
  assert 0 < found["is_first_replica"] < 1 or replicas == 1


def test_the_measure_is_compiled_once_and_reads_variables_anew():
  replicator = Replicator("mirrored", logical_cpus=7)
  with replicator.scope():
    variable = tf.Variable(1.0, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
  traced = []

  def measure(numbers):
    traced.append(numbers.shape)
    return {"value": tf.fill(numbers.shape, variable.read_value())}

  every_example = EveryExample(Numbers())
  assert every_example.mean(measure) == {"value": 1.0}
  variable.assign(3.0)
  assert every_example.mean(measure) == {"value": 3.0}
  assert traced == [tf.TensorShape([37])] * 7  # One trace on each replica; 259 at a time.


def test_it_runs_during_an_evaluation_and_where_there_is_no_strategy():
  context.run.replicator = None
  with context.entered(tf.constant(3, tf.int64)):
    found = EveryExample(Numbers()).mean(measured)
  np.testing.assert_allclose(found["weight"], WEIGHTS.mean(), rtol=1e-12)


def test_what_is_no_number_for_each_example_is_refused():
  Replicator("mirrored", logical_cpus=2)
  every_example = EveryExample(Numbers(), 64)
  with pytest.raises(UsageError, match=r"the measure 'sum' is int64 \(\); return a number for each "
                                       "of the 32 examples"):
    every_example.mean(lambda numbers: {"sum": tf.reduce_sum(numbers)})
  with pytest.raises(UsageError, match=r"the measure calls the collective all_sum.* which would "
                                       "wait for workers that do not evaluate"):
    every_example.mean(lambda numbers: {"sum": numbers + all_sum(tf.reduce_sum(numbers))})
  with pytest.raises(UsageError, match=r"EveryExample\.batch_size = 0: must be at least 1"):
    EveryExample(Numbers(), 0)
