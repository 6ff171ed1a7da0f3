"""Optimizers whose slots begin as copies of the weights, when the weights come after the slots."""

from replicator import wrap_optimizer
from replicator.step.context import step_number
from tests.replicator.step.optimizers import small_network as small
from tests.replicator.step.optimizers.small_network import K

import numpy as np
import pytest
import tensorflow as tf


class Lookahead(K.SGD):
  """Follows slow weights, which move halfway to the fast ones."""

  def build(self, variables):
    super().build(variables)
    self.slow = [self.add_variable_from_reference(v, "slow") for v in variables]
    for slow, variable in zip(self.slow, variables, strict=True):
      slow.assign(variable)

  def update_step(self, gradient, variable, learning_rate):
    super().update_step(gradient, variable, learning_rate)
    slow = self.slow[self._get_variable_index(variable)]
    self.assign(slow, 0.5 * slow + 0.5 * variable)
    self.assign(variable, slow)


@pytest.mark.parametrize("make", [
    pytest.param(lambda: K.ScheduleFreeAdamW(0.1, warmup_steps=2), marks=pytest.mark.skipif(
        not hasattr(K, "ScheduleFreeAdamW"), reason="this Keras does not have it")),
    lambda: Lookahead(0.1, momentum=0.5), lambda: K.Lamb(0.1)],
    ids=["ScheduleFreeAdamW", "Lookahead", "Lamb"])
def test_weights_that_come_after_the_slots_train_as_in_plain_keras(float64, one_or_two, make):
  with one_or_two.scope():
    variables = small.make_variables()
    for variable, first in zip(variables, (np.ones([3, 2]), [0.0, 0.0], [2.0, 3.0]), strict=True):
      variable.assign(first)  # Zeros are like the slots of all optimizers.
    wrapped = wrap_optimizer(make(), variables)
  for variable, value in zip(variables, small.WEIGHTS, strict=True):
    variable.assign(value)

  def step(batch):
    wrapped.apply(small.gradients_of(variables, batch, step_number()), variables)
    return tf.constant(0)

  trajectory = []
  for _ in range(4):
    one_or_two.run(step, small.BATCH)
    trajectory.append([v.numpy() for v in variables])
  small.assert_close(trajectory, small.train_plainly(make(), 4))
  one_or_two.run(lambda batch: step(batch), small.BATCH)  # Another step, compiled after updates.
  small.assert_close([[v.numpy() for v in variables]], small.train_plainly(make(), 5)[4:])
