"""ACGAN's discriminator: what it computes with each network, and what it refuses."""

import functools

from models.gan.networks.acgan import ACGANDiscriminator
from models.gan.networks.dcgan import DCGANDiscriminator
from models.gan.networks.r3gan import R3GANDiscriminator

import numpy as np
import pytest
import tensorflow as tf

# All others inherit the score of DCGAN's; R3GAN has another one.
NETWORKS = {"dcgan": functools.partial(DCGANDiscriminator, base_channels=4),
            "r3gan": functools.partial(R3GANDiscriminator, widths=(8, 8))}
IMAGES = tf.constant(np.random.default_rng(0).uniform(-1, 1, [3, 8, 8, 1]), tf.float32)


@pytest.mark.parametrize("name", NETWORKS)
def test_scores_and_logits_are_linear_in_the_features_of_the_network(name):
  discriminator = ACGANDiscriminator(8, 1, num_classes=5, network=NETWORKS[name])
  scores, logits = discriminator(IMAGES)
  np.testing.assert_allclose(scores, discriminator.network(IMAGES), rtol=1e-6)
  features = discriminator.network.features(IMAGES)
  kernel, bias = discriminator.classifier.weights
  np.testing.assert_allclose(logits, features @ kernel + bias, rtol=1e-5)


def test_every_variable_of_both_heads_is_trained():
  discriminator = ACGANDiscriminator(8, 1, num_classes=5, network=NETWORKS["dcgan"])
  with tf.GradientTape() as tape:
    scores, logits = discriminator(IMAGES, training=True)
    loss = tf.reduce_mean(scores) + tf.reduce_mean(tf.square(logits))
  variables = discriminator.trainable_variables
  assert all(g is not None and np.any(g) for g in tape.gradient(loss, variables))


def test_logits_are_in_the_precision_of_the_policy(float64):
  discriminator = ACGANDiscriminator(8, 1, 5, NETWORKS["dcgan"])
  assert [x.dtype for x in discriminator(tf.cast(IMAGES, tf.float64))] == [tf.float64] * 2
