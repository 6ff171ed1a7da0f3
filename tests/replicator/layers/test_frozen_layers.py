"""Layers that are not trainable compute as when they are not training."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator.layers import batch_norm


@pytest.mark.parametrize("make", [replicator.GlobalBatchNorm,
                                  lambda: replicator.SpectralNorm(keras.layers.Dense(2))])
def test_a_frozen_layer_computes_as_when_it_is_not_training(make):
  x = tf.constant(np.random.default_rng(0).normal(2.0, 3.0, [16, 3]), tf.float32)
  layer = make()
  layer(x, training=True)
  before = [v.numpy() for v in layer.variables]
  layer.trainable = False
  np.testing.assert_array_equal(layer(x, training=True), layer(x, training=False))
  for value, variable in zip(before, layer.variables, strict=True):
    np.testing.assert_array_equal(variable.numpy(), value)
  layer.trainable = True
  layer(x, training=True)
  assert any((value != variable.numpy()).any()
             for value, variable in zip(before, layer.variables, strict=True))


def test_a_frozen_batch_norm_has_its_moving_statistics_as_standing_ones():
  x = tf.constant(np.random.default_rng(0).normal(2.0, 3.0, [16, 3]), tf.float32)
  net = keras.Sequential([keras.Input([3]), batch_norm.GlobalBatchNorm(), keras.layers.Dense(2),
                          batch_norm.GlobalBatchNorm()])
  net.layers[0].trainable = False
  expected = net.layers[0](x)
  with replicator.use_standing_statistics(net, lambda i: net(x, training=True), 2):
    np.testing.assert_array_equal(net.layers[0](x), expected)
    assert abs(float(tf.reduce_mean(net(x)))) < 1e-5  # The other one has those of x.
