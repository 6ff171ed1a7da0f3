"""The autoencoder of VQGAN: the functions that it computes."""

from models.gan.networks.vqgan import VQGANAutoencoder
from tests.models.gan.networks.plain import moved, normal, pooled, upsampled

import numpy as np
import tensorflow as tf


def conv(layer, x):
  return tf.nn.conv2d(x, layer.kernel.value, 1, "SAME") + layer.bias.value


def activated(layer, x):
  """Layer normalization and ReLU."""
  mean, variance = tf.nn.moments(x, [1, 2, 3], keepdims=True)
  normalized = (x - mean) / tf.sqrt(variance + 1e-5)
  return tf.nn.relu(normalized * layer.gamma.value + layer.beta.value)


def residual(block, x):
  norm, _, first, norm_again, _, second = block.trunk
  return x + conv(second, activated(norm_again, conv(first, activated(norm, x))))


def test_autoencoder_equals_the_plain_one(float64):
  [network] = moved([VQGANAutoencoder(4, 3, dim=5, base_channels=2, downsamplings=1, blocks=1)])
  images = normal(2, 4, 4, 3)
  first, block, down, block_again, norm, _, last = network.encoder
  x = residual(block_again, pooled(conv(down, residual(block, conv(first, images)))))
  codes = conv(last, activated(norm, x))
  assert codes.shape == (2, 2, 2, 5)
  np.testing.assert_allclose(network.encode(images), codes, rtol=1e-9)
  first, block, up, block_again, norm, _, last = network.decoder
  assert last is network.last
  x = residual(block_again, conv(up, upsampled(residual(block, conv(first, codes)))))
  np.testing.assert_allclose(network.decode(codes), conv(last, activated(norm, x)), rtol=1e-9)
