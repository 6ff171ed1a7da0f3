"""`LinearDecay` against closed forms, and the updates that it counts."""

import numpy as np
import pytest
import tensorflow as tf

from replicator import Replicator
from replicator.errors import UsageError
from replicator.optimizers.schedules import LinearDecay
from tests.replicator.optimizers.small_network import WEIGHTS, K, numpy_gradients, train


@pytest.mark.parametrize("start, values", [
    (0, {0: 0.4, 1: 0.36, 5: 0.2, 9: 0.04, 10: 0.0, 11: 0.0}),
    (6, {0: 0.4, 6: 0.4, 7: 0.3, 9: 0.1, 10: 0.0, 100: 0.0})])
def test_linear_decay(float64, start, values):
  schedule = LinearDecay(0.4, updates=10, start=start)
  copy = LinearDecay.from_config(schedule.get_config())
  for step, expected in values.items():
    for s in (schedule, copy):
      np.testing.assert_allclose(s(tf.constant(step, tf.int64)), expected, atol=1e-15)


def test_linear_decay_rises_first(float64):
  schedule = LinearDecay(0.4, updates=10, start=6, warmup=4)
  for step, expected in {0: 0.1, 1: 0.2, 3: 0.4, 6: 0.4, 9: 0.1, 10: 0.0}.items():
    assert float(schedule(step)) == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("times", [{"updates": 5, "start": 5},
                                   {"updates": 9, "start": 2, "warmup": 3}])
def test_the_times_of_linear_decay_must_follow_each_other(times):
  with pytest.raises(UsageError, match="must follow each other in this order"):
    LinearDecay(0.1, **times)


def test_the_schedule_counts_the_updates_of_its_own_optimizer(float64):
  trajectory, _ = train(Replicator("mirrored", logical_cpus=2),
                        lambda: K.SGD(LinearDecay(0.1, updates=2)), 3)
  gradient = numpy_gradients(slice(None))[1]
  np.testing.assert_allclose(trajectory[0][1], WEIGHTS[1] - 0.1 * gradient)
  assert not np.array_equal(trajectory[1][1], trajectory[0][1])
  np.testing.assert_array_equal(trajectory[2][1], trajectory[1][1])
