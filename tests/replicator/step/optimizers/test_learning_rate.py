"""The learning rate of a wrapped optimizer, read and set on any number of replicas."""

from replicator import wrap_optimizer
from tests.programs.closeness import close
from tests.programs.refusals import refusal
from tests.replicator.step.optimizers import small_network as small
from tests.replicator.step.optimizers.small_network import K

import keras
import tensorflow as tf


def test_a_learning_rate_is_read_and_set_between_steps_and_in_one(float64, one_or_two):
  with one_or_two.scope():
    variable = keras.Variable(1.0, dtype="float64")
    wrapped = wrap_optimizer(K.SGD(0.1), [variable])
  ones = [tf.constant(1.0, tf.float64)]
  train = lambda: wrapped.apply(ones) or wrapped.learning_rate
  assert [float(rate) for rate in one_or_two.run(train)] == [0.1] * one_or_two.num_replicas
  for rate in (0.3, tf.constant(0.25, tf.float64)):
    wrapped.learning_rate = rate
    before = variable.numpy()
    one_or_two.run(train)
    assert float(wrapped.learning_rate) == float(rate)
    close(variable.numpy(), before - float(rate), 1e-15)

  def halves():
    wrapped.learning_rate = wrapped.learning_rate / 2
    return train()
  one_or_two.run(halves)
  assert float(wrapped.learning_rate) == 0.125
  close([copy.numpy() for copy in one_or_two.local_results(variable.value)],
        [1.0 - 0.1 - 0.3 - 0.25 - 0.125] * one_or_two.num_replicas, 1e-14)


def test_a_learning_rate_is_a_number_or_a_schedule_from_the_beginning():
  said = refusal(wrap_optimizer, K.SGD(lambda: 0.1, name="sgd"), small.make_variables())
  assert said.startswith("sgd: its learning rate is a function")
  schedule = K.schedules.ExponentialDecay(0.1, 1, 0.5)
  for first, later in ((schedule, 0.1), (schedule, schedule), (0.1, schedule), (0.1, lambda: 0.1)):
    wrapped = wrap_optimizer(K.SGD(first, name="sgd"), small.make_variables())
    assert "sgd.learning_rate: can only be set" in refusal(setattr, wrapped, "learning_rate", later)
    close(wrapped.learning_rate, 0.1, 1e-6)
