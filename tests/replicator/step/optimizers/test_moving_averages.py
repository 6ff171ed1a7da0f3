"""Averaged weights against closed forms."""

from replicator import wrap_optimizer
from tests.programs.refusals import refusal
from tests.replicator.step.optimizers import small_network as small
from tests.replicator.step.optimizers.small_network import K

import keras
import numpy as np
import pytest
import tensorflow as tf


@pytest.mark.parametrize("start", [0, 2, 3])
def test_an_average_can_move_once_in_so_many_updates_after_its_start(float64, one_or_two, start):
  trajectory, wrapped = small.train(one_or_two, small.OPTIMIZERS["momentum"], 5, ema_decay=0.9,
                                    ema_start=start, ema_every=2)
  copied = trajectory[max(start, 2) - 1]  # It is a copy up to its start.
  points = [small.WEIGHTS if start == 0 else copied, copied, trajectory[3]]
  expected = [0.81 * a + 0.09 * b + 0.1 * c for a, b, c in zip(*points, strict=True)]
  small.assert_close([small.averages_of(wrapped)], [expected])
  assert not any(average.trainable for average in wrapped.averages)


def test_the_average_of_a_frozen_variable_stays(float64, one_or_two):
  with one_or_two.scope():
    variables = small.make_variables()
    wrapped = wrap_optimizer(K.SGD(0.1), variables, ema_decay=0.9)
  before = [weight + 1 for weight in small.WEIGHTS]  # As those of another run, which differ.
  for average, value in zip(wrapped.averages, before, strict=True):
    average.assign(value)
  variables[1].trainable = False

  def step(batch):
    wrapped.apply(small.gradients_of(variables, batch, 0))
    return tf.constant(0)

  one_or_two.run(step, small.BATCH)
  after = small.averages_of(wrapped)
  np.testing.assert_array_equal(after[1], before[1])
  for i in (0, 2):
    np.testing.assert_allclose(after[i], 0.9 * before[i] + 0.1 * variables[i].numpy(), rtol=1e-13)


def test_networks_compute_with_averaged_weights_only_inside(float64, synchronous):
  kernel, x = np.array([[1.0], [2.0]]), small.RNG.normal(size=[4, 2])
  with synchronous.scope():
    layer = keras.layers.Dense(1, use_bias=False)
    layer.build((None, 2))
    wrapped = wrap_optimizer(K.SGD(1.0), layer.trainable_variables, ema_decay=0.75)
  layer.kernel.assign(kernel)
  wrapped.averages[0].assign(kernel)
  synchronous.run(lambda: wrapped.apply([tf.ones([2, 1], tf.float64)]) or tf.constant(0))
  average = kernel - 0.25  # 0.75 kernel + 0.25 (kernel - 1)

  def averaged(x):
    with wrapped.averaged_weights():
      return layer(x)

  np.testing.assert_allclose(averaged(x), x @ average)
  np.testing.assert_allclose(tf.function(averaged, autograph=False)(x), x @ average)
  np.testing.assert_allclose(np.concatenate(synchronous.run(averaged, x)), x @ average)
  np.testing.assert_allclose(layer(x), x @ (kernel - 1.0))
  np.testing.assert_array_equal(layer.kernel.numpy(), kernel - 1.0)


def test_without_ema_there_are_no_averages():
  layer = keras.layers.Dense(1, use_bias=False)
  layer.build((None, 2))
  wrapped = wrap_optimizer(K.SGD(0.1), layer.trainable_variables)
  assert wrapped.averages == []
  x = tf.ones([4, 2])
  with wrapped.averaged_weights():
    np.testing.assert_array_equal(layer(x), x @ layer.kernel.numpy())


def test_a_network_that_is_first_called_with_averaged_weights_is_refused():
  built, late = (keras.layers.Dense(1, name=name) for name in ("built", "late"))
  built.build((None, 2))
  wrapped = wrap_optimizer(K.SGD(0.1), built.trainable_variables, ema_decay=0.75)

  def both():
    with wrapped.averaged_weights():
      return late(built(tf.ones([4, 2])))

  assert refusal(tf.function(both, autograph=False)).startswith(
      "the variable 'late/kernel' is created where weights are replaced")
  built(tf.ones([4, 2]))  # Others are as they were.
  with wrapped.averaged_weights():
    metric = keras.metrics.Mean()  # It lives here alone, and so does its state.
    metric.update_state(3.0)
    assert float(metric.result()) == 3.0
