"""Standing statistics against NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import UsageError

BATCHES = np.random.default_rng(0).normal(3.0, 2.0, [3, 8, 4])
X = np.random.default_rng(1).normal(size=[5, 4])


def test_statistics_are_the_means_over_the_passes(float64):
  network = keras.Sequential([
      keras.Input([4]), replicator.GlobalBatchNorm(epsilon=0.0, momentum=0.7),
      replicator.GlobalBatchNorm(epsilon=3.0, momentum=0.4)])
  standing = lambda i: network(BATCHES[i], training=True)
  with replicator.use_standing_statistics(network, standing, len(BATCHES)):
    outputs = network(X, training=False)
  mean, variance = BATCHES.mean(1).mean(0), BATCHES.var(1).mean(0)
  # The second layer sees the mean 0 and the variance 1 in every pass.
  np.testing.assert_allclose(outputs, (X - mean) / np.sqrt(variance) / 2, rtol=1e-12)


def test_nothing_is_left_behind_and_averages_are_used(float64):
  network = keras.Sequential([keras.Input([4]), replicator.SpectralNorm(keras.layers.Dense(4)),
                              replicator.GlobalBatchNorm()])
  optimizer = replicator.wrap_optimizer(keras.optimizers.SGD(1.0), network.trainable_variables,
                                        ema_decay=0.5)
  before = [v.numpy() for v in network.variables]
  random = np.random.default_rng(2)
  averages = [v.numpy() + random.normal(size=v.shape) for v in optimizer.averages]
  for variable, value in zip(optimizer.averages, averages, strict=True):
    variable.assign(value)

  @tf.function(autograph=False)
  def sample(x):
    with optimizer.averaged_weights(), replicator.use_standing_statistics(
        network, lambda i: network(BATCHES[i], training=True), 2):
      return network(x, training=False)

  outputs = sample(X)
  np.testing.assert_equal([v.numpy() for v in network.variables], before)
  for variable, value in zip(network.trainable_variables, averages, strict=True):
    variable.assign(value)
  with replicator.use_standing_statistics(network, lambda i: network(BATCHES[i], training=True), 2):
    np.testing.assert_allclose(outputs, network(X, training=False), rtol=1e-12)


@pytest.mark.parametrize("layer, passes", [
    (keras.layers.ReLU(), 1), (replicator.GlobalBatchNorm(), 0)])
def test_without_passes_or_layers_it_is_refused(layer, passes):
  with (pytest.raises(UsageError, match="needs at least one of each"),
        replicator.use_standing_statistics(keras.Sequential([layer]), lambda i: None, passes)):
    pass


def test_a_frozen_batch_norm_has_its_moving_statistics_as_standing_ones():
  x = tf.constant(BATCHES[0], tf.float32)
  net = keras.Sequential([keras.Input([4]), replicator.GlobalBatchNorm(), keras.layers.Dense(2),
                          replicator.GlobalBatchNorm()])
  net.layers[0].trainable = False
  expected = net.layers[0](x)
  with replicator.use_standing_statistics(net, lambda i: net(x, training=True), 2):
    np.testing.assert_array_equal(net.layers[0](x), expected)
    assert abs(float(tf.reduce_mean(net(x)))) < 1e-5  # The other one has those of x.
