"""The encoder and the discriminator of BigBiGAN against NumPy."""

import functools

from models.gan.networks.bigbigan import BigBiGANDiscriminator, BigBiGANEncoder
from models.gan.networks.biggan import BigGANDiscriminator
from models.gan.networks.biggan_deep import BigGANDeepDiscriminator
from tests.models.gan.networks import plain
from tests.models.gan.networks.plain import made, moved, normal

import numpy as np
import pytest
import tensorflow as tf

F = functools.partial(BigGANDiscriminator, base_channels=2)


@pytest.fixture(scope="module")
def networks():
  """A float64 discriminator and encoder for 8 pixels, moved from their zeros and ones."""
  return moved(made(lambda: (
      BigBiGANDiscriminator(8, 1, 4, image_network=F, units=6, layers=2),
      BigBiGANEncoder(8, 1, 4, base_channels=2, units=6, layers=3))))


def linear(x, layer):
  """A spectrally normalized linear layer, whose singular vector it sets to the exact one."""
  return x @ plain.normalized(layer) + layer.layer.bias.numpy()


def relu(x):
  return np.maximum(x, 0)


def test_the_scores_are_those_of_the_paper(networks):
  discriminator, _ = networks
  images, latents = tf.tanh(normal(3, 8, 8, 1)), normal(3, 4)

  def perceptron(x, network):
    first, second = network.linear
    x = linear(x, first)
    return relu(x + linear(relu(x), second))

  of_image = discriminator.of_image.features(images).numpy()
  of_latent = perceptron(latents.numpy(), discriminator.of_latent)
  of_pair = perceptron(np.concatenate([of_image, of_latent], 1), discriminator.of_pair)
  joint = linear(of_pair, discriminator.joint_score)[:, 0]
  latent = linear(of_latent, discriminator.latent_score)[:, 0]
  scores = discriminator(images, latents)
  np.testing.assert_allclose(scores.joint, joint, rtol=1e-10)
  np.testing.assert_allclose(scores.latent, latent, rtol=1e-10)
  np.testing.assert_allclose(scores.image, discriminator.of_image(images), rtol=1e-10)


def test_the_encoder_gives_means_and_positive_scales_of_its_features(networks):
  _, encoder = networks
  images = tf.tanh(normal(3, 8, 8, 1))
  x = encoder.features(images).numpy()
  assert x.shape == (3, encoder.num_features) and x.min() >= 0
  for i, layer in enumerate(encoder.perceptron.linear):
    h = (relu(x) if i else x) @ layer.kernel.numpy() + layer.bias.numpy()
    x = x + h if i else h
  outputs = relu(x) @ encoder.mean_and_scale.kernel.numpy() + encoder.mean_and_scale.bias.numpy()
  distribution = encoder(images)
  np.testing.assert_allclose(distribution.mean, outputs[:, :4], rtol=1e-10)
  np.testing.assert_allclose(distribution.scale, np.log1p(np.exp(outputs[:, 4:])), rtol=1e-10)


def test_gradients_reach_every_variable(networks):
  discriminator, encoder = networks
  images = tf.tanh(normal(6, 8, 8, 1))

  def loss():
    latents = encoder(images, training=True)
    scores = discriminator(images, latents.mean + latents.scale, training=True)
    return tf.add_n([tf.reduce_sum(tf.square(score)) for score in scores])

  plain.check_gradients(networks, loss)


def test_a_training_call_moves_every_statistic_and_another_none(networks):
  discriminator, encoder = networks
  images, latents = tf.tanh(normal(3, 8, 8, 1)), normal(3, 4)
  plain.check_statistics(networks, lambda training: (
      discriminator(images, latents, training=training), encoder(images, training=training)))


@pytest.mark.slow
@pytest.mark.parametrize("resolution", [16, 32, 64, 128])
def test_shapes(resolution):
  discriminator = BigBiGANDiscriminator(
      resolution, 3, 6, functools.partial(BigGANDeepDiscriminator, base_channels=4), units=5,
      layers=1)
  encoder = BigBiGANEncoder(resolution, 3, 6, base_channels=1, units=5, layers=1)
  images = tf.zeros([2, resolution, resolution, 3])
  latents = encoder(images, training=True)
  assert latents.mean.shape == latents.scale.shape == (2, 6)
  assert [s.shape for s in discriminator(images, latents.mean, training=True)] == [(2,)] * 3
