"""The BigGAN networks: the functions that they compute, and what they refuse."""

from models.gan.networks.biggan import BigGANDiscriminator, BigGANGenerator
from tests.models.gan.networks import plain
from tests.models.gan.networks.plain import made, moved, normal, normalized

import numpy as np
import pytest
import tensorflow as tf


@pytest.fixture(scope="module")
def networks():
  """A float64 generator and discriminator for 16 pixels, moved from their zeros and ones."""
  return moved(made(lambda: (
      BigGANGenerator(16, 3, 9, num_classes=3, base_channels=4, embedding_dim=5, attention=8),
      BigGANDiscriminator(16, 3, num_classes=3, base_channels=4, attention=8))))


LABELS = tf.constant([2, 0, 1])


# The networks as in the paper: resampling at full size around plain 3x3 convolutions, shortcuts at
# full size, exact singular values.

def attended(x, layer):
  n, h, w, c = x.shape
  rows = {name: np.einsum("nhwc,cd->nhwd", x, normalized(getattr(layer, name))[0, 0])
          for name in ("query", "key", "value")}
  keys, values = (rows[name].reshape(n, h // 2, 2, w // 2, 2, -1).max((2, 4)).reshape(
      n, h * w // 4, -1) for name in ("key", "value"))
  logits = np.einsum("nqd,nkd->nqk", rows["query"].reshape(n, h * w, -1), keys)
  weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  answers = np.einsum("nqk,nkd->nqd", weights, values) @ normalized(layer.out)[0, 0]
  return x + layer.gain.numpy() * answers.reshape(n, h, w, c)


def plain_generator(generator, z, labels):
  chunks = np.split(z, 3, axis=1)
  shared = generator.embedding.numpy()[labels] if labels is not None else np.zeros([3, 0])
  x = chunks[0] @ normalized(generator.linear) + generator.linear.layer.bias
  x = tf.reshape(x, [-1, 4, 4, 16])
  blocks = [layer for layer in generator.trunk if hasattr(layer, "shortcut")]
  for i, block in enumerate(blocks):
    condition = np.concatenate([chunks[i + 1], shared], 1)

    def norm(x, layer, condition=condition):
      gain = 1 + condition @ normalized(layer.gain)
      return plain.standardized(x) * gain[:, None, None] + (
          condition @ normalized(layer.offset))[:, None, None]

    h = plain.spectral_conv(plain.upsampled(tf.nn.relu(norm(x, block.norm1))), block.conv1)
    h = plain.spectral_conv(tf.nn.relu(norm(h, block.norm2)), block.conv2)
    x = h + plain.spectral_conv(plain.upsampled(x), block.shortcut)
    if i == 0 and len(generator.trunk) > len(blocks):
      x = attended(x, generator.trunk[1])
  x = tf.nn.relu(plain.batch_norm(x, generator.norm))
  return tf.tanh(plain.spectral_conv(x, generator.to_image))


def plain_discriminator(discriminator, images, labels):
  x = images
  blocks = [layer for layer in discriminator.trunk if hasattr(layer, "shortcut")]
  for i, block in enumerate(blocks):
    assert (block.shortcut is None) == (i > 0)  # Only the first of three halves the size.
    x = plain.residual_down(x, block, is_first=i == 0, halves=i == 0)
    if i == 2:
      x = attended(x, discriminator.trunk[3])
  h = tf.reduce_sum(tf.nn.relu(x), [1, 2])
  score = tf.linalg.matvec(h, normalized(discriminator.linear)[:, 0])
  score += discriminator.linear.layer.bias
  return h, score + tf.reduce_sum(tf.gather(normalized(discriminator.embedding), labels) * h, 1)


def test_generator_equals_the_plain_one(networks):
  generator, _ = networks
  z = normal(3, 9)
  expected = plain_generator(generator, z.numpy(), LABELS.numpy())
  np.testing.assert_allclose(generator(z, LABELS, training=True), expected, atol=1e-10)


def test_generator_without_classes_equals_the_plain_one(float64):
  generator = BigGANGenerator(16, 3, 9, base_channels=4)
  z = normal(3, 9)
  expected = plain_generator(generator, z.numpy(), None)
  np.testing.assert_allclose(generator(z, training=True), expected, atol=1e-10)


def test_discriminator_equals_the_plain_one(networks):
  _, discriminator = networks
  images = tf.tanh(normal(3, 16, 16, 3))
  features, scores = plain_discriminator(discriminator, images, LABELS)
  np.testing.assert_allclose(discriminator.features(images), features, rtol=1e-10)
  np.testing.assert_allclose(discriminator(images, LABELS), scores, rtol=1e-10)


def test_initial_weights_are_orthogonal_and_all_different(float64):
  kernels = [v.numpy() for v in BigGANGenerator(8, 1, 4, 10, base_channels=2).trainable_variables
             if v.name == "kernel"]
  for kernel in kernels:
    matrix = kernel.reshape(-1, kernel.shape[-1])
    matrix = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    np.testing.assert_allclose(matrix.T @ matrix, np.eye(matrix.shape[1]), atol=1e-12)
  assert not any(a.shape == b.shape and np.array_equal(a, b)
                 for i, a in enumerate(kernels) for b in kernels[:i])
