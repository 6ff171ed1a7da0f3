"""The networks of CycleGAN: the functions that they compute."""

from models.gan.networks.cyclegan import CycleGANGenerator, PatchDiscriminator
from tests.models.gan.networks.plain import leaky, moved, normal

import numpy as np
import tensorflow as tf


def normalized(x):
  """Instance normalization."""
  mean, variance = tf.nn.moments(x, [1, 2], keepdims=True)
  return (x - mean) / tf.sqrt(variance + 1e-5)


def kernels(layers) -> list:
  return [layer.kernel.value for layer in layers if hasattr(layer, "kernel")]


def reflected(x, kernel):
  """A convolution that sees a reflected border."""
  size = kernel.shape[0] // 2
  padded = np.pad(x, [(0, 0), (size, size), (size, size), (0, 0)], "reflect")
  return tf.nn.conv2d(padded, kernel, 1, "VALID")


def test_generator_equals_the_plain_one(float64):
  [generator] = moved([CycleGANGenerator(8, 2, base_channels=2, blocks=1)], 0.2)
  images, relu = normal(3, 8, 8, 2), tf.nn.relu
  [block] = [layer for layer in generator.trunk if hasattr(layer, "trunk")]
  first, down, down_again, up, up_again, last = kernels(generator.trunk)
  x = relu(normalized(reflected(images, first)))
  for kernel in (down, down_again):
    x = relu(normalized(tf.nn.conv2d(x, kernel, 2, "SAME")))
  inner, outer = kernels(block.trunk)
  x += normalized(reflected(relu(normalized(reflected(x, inner))), outer))
  for kernel, size in ((up, 4), (up_again, 8)):
    x = relu(normalized(tf.nn.conv2d_transpose(x, kernel, [3, size, size, 16 // size], 2, "SAME")))
  x = tf.tanh(reflected(x, last) + generator.trunk[-1].bias.value)
  np.testing.assert_allclose(generator(images), x, rtol=1e-9)


def test_discriminator_equals_the_plain_one(float64):
  [discriminator] = moved([PatchDiscriminator(8, 2, base_channels=2, layers=2)], 0.2)
  first, second, third, last = kernels(discriminator.trunk)
  images = normal(3, 8, 8, 2)
  x = leaky(tf.nn.conv2d(images, first, 2, "SAME") + discriminator.trunk[0].bias.value)
  x = leaky(normalized(tf.nn.conv2d(x, second, 2, "SAME")))
  x = leaky(normalized(tf.nn.conv2d(x, third, 1, "SAME")))
  x = tf.nn.conv2d(x, last, 1, "SAME") + discriminator.trunk[-1].bias.value
  assert x.shape == (3, 2, 2, 1)
  np.testing.assert_allclose(discriminator(images), x[..., 0], rtol=1e-9)
