"""The DCGAN networks: the functions that they compute."""

from models.gan.networks.dcgan import DCGANDiscriminator, DCGANGenerator
from tests.models.gan.networks.plain import batch_norm, leaky, moved, normal

import keras
import numpy as np
import pytest
import tensorflow as tf

LABELS = tf.constant([2, 0, 1])


def test_generator_equals_the_plain_one(float64):
  [generator] = moved([DCGANGenerator(16, 2, 5, num_classes=3, base_channels=4)], 0.2)
  norms = [layer for layer in generator.trunk if hasattr(layer, "gamma")]
  kernels = [layer.kernel for layer in generator.trunk if hasattr(layer, "kernel")]
  z = normal(3, 5)
  x = tf.concat([z, np.eye(3)[LABELS]], 1) @ generator.linear.kernel.value
  x = tf.reshape(tf.nn.relu(batch_norm(x, norms[0])), [3, 4, 4, 8])
  x = tf.nn.conv2d_transpose(x, kernels[0].value, [3, 8, 8, 4], 2, "SAME")
  x = tf.nn.relu(batch_norm(x, norms[1]))
  x = tf.nn.conv2d_transpose(x, kernels[1].value, [3, 16, 16, 2], 2, "SAME")
  np.testing.assert_allclose(generator(z, LABELS, training=True), tf.tanh(x), rtol=1e-10)


@pytest.mark.parametrize("has_norm", [True, False])
def test_discriminator_equals_the_plain_one(has_norm, float64):
  [discriminator] = moved(
      [DCGANDiscriminator(16, 2, num_classes=3, base_channels=4, batch_norm=has_norm)], 0.2)
  images = normal(3, 16, 16, 2)
  first, second = [layer for layer in discriminator.trunk if hasattr(layer, "kernel")]
  x = leaky(tf.nn.conv2d(images, first.kernel.value, 2, "SAME"))
  x = tf.nn.conv2d(x, second.kernel.value, 2, "SAME")
  [norm] = [layer for layer in discriminator.trunk if hasattr(layer, "gamma")] or [None]
  x = leaky(batch_norm(x, norm) if has_norm else x + second.bias)
  h = tf.reshape(x, [3, -1])
  np.testing.assert_allclose(discriminator.features(images, training=True), h, rtol=1e-10)
  expected = tf.linalg.matvec(h, discriminator.linear.kernel.value[:, 0])
  expected += tf.reduce_sum(h * tf.gather(discriminator.embedding.kernel.value, LABELS), 1)
  np.testing.assert_allclose(discriminator(images, LABELS, training=True), expected, rtol=1e-9)


def test_initial_weights():
  keras.utils.set_random_seed(0)
  networks = DCGANGenerator(16, base_channels=16), DCGANDiscriminator(16, base_channels=16)
  kernels = [v.numpy() for network in networks for v in network.trainable_variables
             if v.name == "kernel"]
  assert len({kernel.tobytes() for kernel in kernels}) == 6
  for kernel in kernels:
    assert np.std(kernel) == pytest.approx(0.02, rel=0.1)
