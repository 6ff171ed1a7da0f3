"""Averaged weights against closed forms."""

import keras
import numpy as np
import tensorflow as tf

from replicator import wrap_optimizer
from tests.replicator.optimizers.small_network import (
  OPTIMIZERS,
  RNG,
  WEIGHTS,
  K,
  assert_close,
  averages_of,
  moving_average,
  train,
)


def test_averages_are_the_closed_form(float64, one_or_two):
  trajectory, wrapped = train(one_or_two, OPTIMIZERS["momentum"], 5, ema_decay=0.9, ema_start=2)
  assert_close([averages_of(wrapped)], [moving_average(trajectory, 0.9, 2)])
  assert not any(average.trainable for average in wrapped.averages)


def test_an_average_can_move_once_in_so_many_updates(float64, one_or_two):
  trajectory, wrapped = train(one_or_two, OPTIMIZERS["momentum"], 5, ema_decay=0.9, ema_every=2)
  points = [WEIGHTS, trajectory[1], trajectory[3]]
  expected = [0.81 * a + 0.09 * b + 0.1 * c for a, b, c in zip(*points, strict=True)]
  assert_close([averages_of(wrapped)], [expected])


def test_an_average_that_moves_seldom_is_a_copy_until_its_start(float64, one_or_two):
  for start in (2, 3):
    trajectory, wrapped = train(one_or_two, OPTIMIZERS["momentum"], 5, ema_decay=0.9,
                                ema_start=start, ema_every=2)
    expected = [0.9 * a + 0.1 * b for a, b in zip(trajectory[1], trajectory[3], strict=True)]
    assert_close([averages_of(wrapped)], [expected])


def test_networks_compute_with_averaged_weights_only_inside(float64, synchronous):
  kernel, x = np.array([[1.0], [2.0]]), RNG.normal(size=[4, 2])
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
