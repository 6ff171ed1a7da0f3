"""The SN-GAN networks: the functions that they compute."""

from models.gan.networks.sngan import Encoder, SNGANDiscriminator, SNGANGenerator
from tests.models.gan.networks import plain
from tests.models.gan.networks.plain import batch_norm, moved, normal, normalized, upsampled

import keras
import numpy as np
import pytest
import tensorflow as tf


@pytest.mark.parametrize("resolution", [8, 64, pytest.param(128, marks=pytest.mark.slow)])
def test_gradients_reach_every_variable_of_pairs_and_of_the_encoder(resolution):
  keras.utils.set_random_seed(0)  # With four features, some seeds leave no ReLU active.
  z, labels = normal(3, 5, dtype="float32"), tf.constant([0, 1, 1])
  generator = SNGANGenerator(resolution, latent_dim=5, width_multiplier=1 / 32, num_classes=2)
  discriminator = SNGANDiscriminator(resolution, width_multiplier=1 / 32, num_classes=2,
                                     latent_dim=5)
  encoder = Encoder(resolution, latent_dim=5, width_multiplier=1 / 32)

  def loss():
    images = generator(z, labels, training=True)
    latents = encoder(images, training=True)
    scores = discriminator(images, labels, latents, training=True)
    assert latents.shape == (3, 5) and scores.shape == (3,)
    return tf.reduce_mean(tf.square(scores))

  plain.check_gradients((generator, discriminator, encoder), loss)


# The unfolded networks as in the papers: resampling at full size around plain 3x3 convolutions,
# shortcuts at full size, exact singular values.

def conv(x, layer):
  return tf.nn.conv2d(x, layer.kernel.value, 1, "SAME") + layer.bias


def plain_generator(generator, z):
  x = tf.reshape(z @ generator.linear.kernel.value + generator.linear.bias, [-1, 4, 4, 16])
  for block in generator.blocks:
    h = conv(upsampled(tf.nn.relu(batch_norm(x, block.norm1))), block.conv1)
    h = conv(tf.nn.relu(batch_norm(h, block.norm2)), block.conv2)
    x = h + conv(upsampled(x), block.shortcut)
  return tf.tanh(conv(tf.nn.relu(batch_norm(x, generator.norm)), generator.to_image))


def plain_discriminator(discriminator, images, labels, latents):
  x = images
  for i, block in enumerate(discriminator.blocks):
    x = plain.residual_down(x, block, is_first=i == 0, halves=i < 2)
  h = tf.reduce_sum(tf.nn.relu(x), [1, 2])
  score = tf.linalg.matvec(h, normalized(discriminator.linear)[:, 0])
  score += tf.reduce_sum(tf.gather(normalized(discriminator.embedding), labels) * h, 1)
  pair = h @ normalized(discriminator.joint_features) + (
      latents @ normalized(discriminator.joint_latent) + discriminator.joint_latent.layer.bias)
  pair = tf.nn.relu(pair) @ normalized(discriminator.joint_hidden)
  pair = tf.nn.relu(pair + discriminator.joint_hidden.layer.bias)
  return score + tf.linalg.matvec(pair, normalized(discriminator.joint_score)[:, 0])


def test_generator_equals_the_unfolded_one(float64):
  [generator] = moved([SNGANGenerator(32, latent_dim=6, width_multiplier=1 / 16)])
  z = normal(3, 6)
  np.testing.assert_allclose(
      generator(z, training=True), plain_generator(generator, z), atol=1e-11)


def test_discriminator_equals_the_unfolded_one(float64):
  [discriminator] = moved([SNGANDiscriminator(32, width_multiplier=1 / 16, num_classes=3,
                                              latent_dim=5)])
  images = tf.tanh(normal(3, 32, 32, 3))
  labels, latents = tf.constant([2, 0, 1]), normal(3, 5)
  expected = plain_discriminator(discriminator, images, labels, latents)
  np.testing.assert_allclose(discriminator(images, labels, latents), expected, rtol=1e-11)


def test_initial_weights_are_glorot_uniform_and_all_different():
  seen = []
  for make in (SNGANGenerator, SNGANDiscriminator, Encoder):
    network = make(32, width_multiplier=0.5)
    for variable in network.trainable_variables:
      if variable.name != "kernel":
        continue
      kernel = variable.numpy()
      area = int(np.prod(kernel.shape[:-2]))
      gain_squared = 2 if area == 9 and kernel.shape[-1] != 3 else 1
      limit = np.sqrt(6 * gain_squared / (area * sum(kernel.shape[-2:])))
      assert 0.9 * limit < np.abs(kernel).max() <= limit * (1 + 1e-6), variable.path
      assert not any(np.array_equal(kernel, other) for other in seen), variable.path
      seen.append(kernel)
