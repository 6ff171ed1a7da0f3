"""Optimizers that are not wrapped: refused in a step, and as they were elsewhere."""

from replicator import UsageError, wrap_optimizer
from tests.replicator.step.optimizers import small_network as small
from tests.replicator.step.optimizers.small_network import K

import numpy as np
import pytest
import tensorflow as tf


class Own(K.SGD):
  """An optimizer of a user."""

  def apply(self, grads, trainable_variables=None):
    super().apply(grads, trainable_variables)


def test_one_is_refused_in_a_step_and_works_after_it(one_or_two):
  made = [Own(1.0), K.Adam(1.0), K.LossScaleOptimizer(K.SGD(1.0))]
  with one_or_two.scope():
    variables = small.make_variables()
    made.append(wrap_optimizer(K.SGD(1.0), variables).keras_optimizer)
    v1 = tf.compat.v1.train.MomentumOptimizer(1.0, 0.9)
  gradients = [tf.ones_like(v.value) for v in variables]
  pairs = list(zip(gradients, variables, strict=True))
  calls = [lambda o=o: o.apply(gradients, variables) for o in made]
  calls += [lambda: made[1].apply_gradients(pairs),
            lambda: v1.apply_gradients([(g, v.value) for g, v in pairs])]
  for call in calls:
    with pytest.raises(UsageError, match=r"unwrapped.py:\d+: (Own|Adam|SGD|\w+Optimizer)\.apply"
                                         r".*not wrapped.* write wrap_optimizer"):
      one_or_two.run(lambda call=call: call() or tf.constant(0))
  for variable, weight in zip(variables, small.WEIGHTS, strict=True):
    np.testing.assert_array_equal(variable.numpy(), np.float32(weight))
  alone = small.make_variables()  # As of an evaluation.
  K.SGD(1.0).apply(gradients, alone)
  np.testing.assert_allclose(alone[1].numpy(), small.WEIGHTS[1] - 1.0, rtol=1e-6)


def test_it_is_refused_in_a_step_that_runs_eagerly(one_or_two, run_eagerly):
  run_eagerly()
  variable, = small.make_variables()[:1]
  with pytest.raises(UsageError, match=r"SGD\.apply: .* not wrapped"):
    one_or_two.run(lambda: K.SGD(1.0).apply([variable.value], [variable]) or tf.constant(0))
