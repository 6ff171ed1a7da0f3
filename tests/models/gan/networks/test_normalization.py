"""Batch normalization by class against NumPy, on one replica and on two; layer normalization.

The tests of BigGAN and VQGAN compare what their normalizations compute with NumPy.
"""

from models.gan.networks.normalization import ClassBatchNorm, LayerNorm
from replicator import Replicator, all_mean
from tests.models.gan.networks.plain import slopes

import keras
import numpy as np
import pytest
import tensorflow as tf

RNG = np.random.default_rng(0)
IMAGES, WEIGHTS = RNG.normal(1.0, 2.0, [2, 8, 3, 3, 2])
LABELS = np.array([0, 2, 2, 1, 0, 0, 2, 1])
GAMMA, BETA = RNG.normal(size=[2, 3, 2])


@pytest.mark.parametrize("strategy, replicas", [("one_device", 1), ("mirrored", 2)])
def test_each_example_is_scaled_by_its_class(strategy, replicas):
  replicator = Replicator(strategy, logical_cpus=replicas)
  with replicator.scope():
    layer = ClassBatchNorm(3, dtype="float64")
    layer.norm.dtype_policy = keras.DTypePolicy("float64")
    layer.build(IMAGES.shape)
  layer.gamma.assign(GAMMA)
  layer.beta.assign(BETA)

  def step(batch):
    x, labels, weights = batch
    with tf.GradientTape() as tape:
      y = layer(x, labels, training=True)
      loss = tf.reduce_mean(tf.reduce_sum(weights * y, [1, 2, 3]))
    return y, all_mean(tape.gradient(loss, [layer.gamma.value, layer.beta.value]))

  results = replicator.run(step, (IMAGES, LABELS, WEIGHTS))
  normalized = (IMAGES - IMAGES.mean((0, 1, 2))) / np.sqrt(IMAGES.var((0, 1, 2)) + 1e-5)
  scale, offset = GAMMA[LABELS][:, None, None], BETA[LABELS][:, None, None]
  np.testing.assert_allclose(np.concatenate([y for y, _ in results]), scale * normalized + offset,
                             rtol=1e-10, atol=1e-12)
  of_class = np.eye(3)[LABELS].T / len(LABELS)  # [classes, n]
  for _, (dgamma, dbeta) in results:
    np.testing.assert_allclose(dgamma, of_class @ (WEIGHTS * normalized).sum((1, 2)), rtol=1e-10)
    np.testing.assert_allclose(dbeta, of_class @ WEIGHTS.sum((1, 2)), rtol=1e-10)


@pytest.mark.parametrize(("layer", "is_exact"), [
    (LayerNorm, True), (keras.layers.LayerNormalization, False)])
def test_the_second_derivatives_of_layer_norm(layer, is_exact):
  # That Keras' are wrong is why there is a layer of our own. They are those of a penalty on the
  # gradient by the inputs of a layer before it, as in a discriminator.
  x, weights = (tf.constant(value.reshape(8, 18)) for value in (IMAGES, WEIGHTS))
  kernel = tf.Variable(RNG.normal(size=[18, 18]))
  norm = layer(epsilon=0.1, dtype="float64")

  def penalty():
    with tf.GradientTape() as tape:
      tape.watch(x)
      total = tf.reduce_sum(weights * norm(x @ kernel) ** 3)
    return tf.reduce_sum(tape.gradient(total, x) ** 2)

  assert np.isclose(*slopes([kernel], penalty), rtol=1e-5) == is_exact
