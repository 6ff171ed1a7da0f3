"""The BigGAN networks: published sizes, the functions that they compute, and what they refuse."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from models.gan.networks.biggan import ARCHITECTURES, BigGANDiscriminator, BigGANGenerator
from replicator.errors import UsageError
from tests.models.gan.networks.plain import normalized, pooled, upsampled
from tests.models.gan.networks.sizes import count_parameters


@pytest.fixture
def float64():
  keras.config.set_dtype_policy("float64")
  yield
  keras.config.set_dtype_policy("float32")


@pytest.fixture(scope="module")
def networks():
  """A float64 generator and discriminator for 16 pixels, moved from their zeros and ones."""
  keras.utils.set_random_seed(0)
  keras.config.set_dtype_policy("float64")
  generator = BigGANGenerator(16, 3, 9, num_classes=3, width=4, embedding_dim=5, attention=8)
  discriminator = BigGANDiscriminator(16, 3, num_classes=3, width=4, attention=8)
  random = np.random.default_rng(1)
  for v in generator.trainable_variables + discriminator.trainable_variables:
    v.assign(v + 0.1 * random.normal(size=v.shape))
  keras.config.set_dtype_policy("float32")
  return generator, discriminator


def normal(*shape):
  return tf.constant(np.random.default_rng(0).normal(size=shape))


LABELS = tf.constant([2, 0, 1])


@pytest.mark.parametrize("network, parameters", [
    # google/compare_gan, resnet_biggan.py; PyTorch-StudioGAN's log of ImageNet-128 agrees.
    (BigGANGenerator, 70_433_988), (BigGANDiscriminator, 87_982_370)])
def test_published_sizes_at_128_pixels(network, parameters):
  assert count_parameters(lambda: network(128, num_classes=1000)) == parameters


@pytest.mark.slow
@pytest.mark.parametrize("resolution, latent_dim, g, d, equal_shortcuts", [
    # ajbrock/BigGAN-PyTorch. compare_gan's 98,635,298 is without the shortcut 768 -> 768.
    (256, 140, 82_235_844, 99_225_890, [768]),
    # compare_gan's G; its D of 98,801,378 is without the shortcuts 96 -> 96 and 768 -> 768.
    (512, 160, 82_468_068, 99_401_282, [96, 768])])
def test_published_sizes(resolution, latent_dim, g, d, equal_shortcuts):
  assert count_parameters(lambda: BigGANGenerator(resolution, 3, latent_dim, 1000)) == g
  assert count_parameters(lambda: BigGANDiscriminator(resolution, 3, 1000)) == d
  without = d - sum(c * c + c for c in equal_shortcuts)
  assert without == {256: 98_635_298, 512: 98_801_378}[resolution]


@pytest.mark.slow
def test_published_sizes_of_compare_gan_at_256_and_64_pixels():
  # compare_gan's G for 256 attends at 128 pixels.
  assert count_parameters(lambda: BigGANGenerator(256, 3, 140, 1000, attention=128)) == 82_097_604
  # Derived from compare_gan's tables, with blocks_with_attention = 'B4' and 'B1'.
  assert count_parameters(lambda: BigGANGenerator(64, 3, 120, 1000)) == 70_239_108
  assert count_parameters(lambda: BigGANDiscriminator(64, 3, 1000, attention=32)) == 87_752_258


@pytest.mark.slow
def test_published_sizes_for_cifar10():
  # PyTorch-StudioGAN's log of BigGAN on CIFAR-10.
  assert count_parameters(lambda: BigGANGenerator(32, 3, 80, 10, attention=16)) == 9_416_196
  assert count_parameters(lambda: BigGANDiscriminator(32, 3, 10, attention=16)) == 2_415_170
  # The discriminator of ajbrock/BigGAN-PyTorch's script for CIFAR-10: 256 channels.
  assert count_parameters(lambda: BigGANDiscriminator(32, 3, 10, width=128)) == 4_207_361


@pytest.mark.parametrize("num_classes", [0, 4])
@pytest.mark.parametrize("resolution", [
    8, 32, *(pytest.param(r, marks=pytest.mark.slow) for r in (16, 64, 128, 256, 512))])
def test_shapes_and_ranges(resolution, num_classes):
  chunks = len(ARCHITECTURES[resolution].up)
  generator = BigGANGenerator(resolution, 1, 2 * chunks, num_classes, width=4)
  discriminator = BigGANDiscriminator(resolution, 1, num_classes, width=4)
  variables = [len(network.variables) for network in (generator, discriminator)]
  labels = tf.constant([0, 3]) if num_classes else None
  images = generator(tf.cast(normal(2, 2 * chunks), tf.float32), labels, training=True)
  assert images.shape == (2, resolution, resolution, 1) and images.dtype == tf.float32
  assert np.abs(images).max() <= 1
  assert discriminator(images, labels, training=True).shape == (2,)
  assert discriminator.features(images).shape == (2, discriminator.num_features)
  assert [len(network.variables) for network in (generator, discriminator)] == variables


# The networks as in the paper: resampling at full size around plain 3x3 convolutions, shortcuts at
# full size, exact singular values.

def conv(x, layer):
  x = tf.nn.conv2d(x, normalized(layer), 1, "SAME")
  return x + layer.layer.bias if layer.layer.use_bias else x


def standardized(x):
  mean, variance = tf.nn.moments(x, [0, 1, 2])
  return (x - mean) / tf.sqrt(variance + 1e-5)


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
      return standardized(x) * gain[:, None, None] + (
          condition @ normalized(layer.offset))[:, None, None]

    h = tf.nn.conv2d(upsampled(tf.nn.relu(norm(x, block.norm1))), normalized(block.conv1), 1,
                     "SAME") + block.conv1.layer.bias
    h = conv(tf.nn.relu(norm(h, block.norm2)), block.conv2)
    x = h + conv(upsampled(x), block.shortcut)
    if i == 0 and len(generator.trunk) > len(blocks):
      x = attended(x, generator.trunk[1])
  x = standardized(x) * generator.norm.gamma + generator.norm.beta
  return tf.tanh(conv(tf.nn.relu(x), generator.to_image))


def plain_discriminator(discriminator, images, labels):
  x = images
  blocks = [layer for layer in discriminator.trunk if hasattr(layer, "shortcut")]
  for i, block in enumerate(blocks):
    first, second = [layer for layer in block.residual if hasattr(layer, "layer")]
    h = tf.nn.conv2d(x if i == 0 else tf.nn.relu(x), normalized(first), 1, "SAME")
    h = tf.nn.relu(h + first.layer.bias)
    h = tf.nn.conv2d(h, normalized(second), 1, "SAME") + second.layer.bias
    shortcut = x if block.shortcut is None else conv(x, block.shortcut)
    assert (block.shortcut is None) == (i > 0)  # Only the first of three halves the size.
    x = pooled(h) + pooled(shortcut) if i == 0 else h + shortcut
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
  generator = BigGANGenerator(16, 3, 9, width=4)
  z = normal(3, 9)
  expected = plain_generator(generator, z.numpy(), None)
  np.testing.assert_allclose(generator(z, training=True), expected, atol=1e-10)


def test_discriminator_equals_the_plain_one(networks):
  _, discriminator = networks
  images = tf.tanh(normal(3, 16, 16, 3))
  features, scores = plain_discriminator(discriminator, images, LABELS)
  np.testing.assert_allclose(discriminator.features(images), features, rtol=1e-10)
  np.testing.assert_allclose(discriminator(images, LABELS), scores, rtol=1e-10)


def test_a_training_call_advances_every_singular_vector_and_another_none(networks):
  _, discriminator = networks
  images = tf.tanh(normal(3, 16, 16, 3))
  vectors = [v for v in discriminator.variables if v.name == "u" and v.shape[-1] > 1]
  for v in vectors:
    v.assign(np.random.default_rng(5).normal(size=v.shape))

  def moved(call):
    before = [v.numpy() for v in vectors]
    call()
    return [not np.array_equal(v, b) for v, b in zip(vectors, before, strict=True)]

  assert not any(moved(lambda: discriminator(images, LABELS)))
  assert all(moved(lambda: discriminator(images, LABELS, training=True)))
  # All but those of the embedding; the last layer has one output, and no vector to follow.
  assert sum(moved(lambda: discriminator.features(images, training=True))) == len(vectors) - 1


def test_initial_weights_are_orthogonal_and_all_different(float64):
  kernels = [v.numpy() for v in BigGANGenerator(8, 1, 4, 10, width=2).trainable_variables
             if v.name == "kernel"]
  for kernel in kernels:
    matrix = kernel.reshape(-1, kernel.shape[-1])
    matrix = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    np.testing.assert_allclose(matrix.T @ matrix, np.eye(matrix.shape[1]), atol=1e-12)
  assert not any(a.shape == b.shape and np.array_equal(a, b)
                 for i, a in enumerate(kernels) for b in kernels[:i])


@pytest.mark.slow
def test_construction_and_calls_under_a_strategy():
  runner = replicator.Replicator("mirrored", logical_cpus=2)
  with runner.scope():
    generator = BigGANGenerator(8, 1, 4, 3, width=2, embedding_dim=3, attention=8)
    discriminator = BigGANDiscriminator(8, 1, 3, width=2, attention=4)

  def step(batch):
    images = generator(batch["z"], batch["label"], training=True)
    return discriminator(images, batch["label"], training=True)

  z = np.random.default_rng(0).normal(size=[4, 4]).astype("float32")
  outputs = runner.run(step, {"z": z, "label": np.array([0, 1, 2, 0])})
  assert [scores.shape for scores in outputs] == [(2,), (2,)]


@pytest.mark.parametrize("make, message", [
    (lambda: BigGANGenerator(48), "BigGANGenerator.resolution = 48: .*8, 16, 32, 64, 128, 256"),
    (lambda: BigGANDiscriminator(48), "BigGANDiscriminator.resolution = 48: "),
    (lambda: BigGANGenerator(32, latent_dim=30), "latent_dim = 30: .*4 equal chunks"),
    (lambda: BigGANGenerator(32, latent_dim=80, attention=64), "attention = 64: .*8, 16, 32 pixel"),
    (lambda: BigGANDiscriminator(8, attention=8), "attention = 8: .*have 4 pixels"),
    (lambda: BigGANGenerator(8, 1, 4, 2, width=1)(np.zeros([1, 4])), "given no labels"),
    (lambda: BigGANDiscriminator(8, 1, 2, width=1)(np.zeros([1, 8, 8, 1])), "given no labels"),
    (lambda: BigGANDiscriminator(8, 1, width=1)(np.zeros([1, 16, 16, 1])), "8 x 8 x 1 but was"),
])
def test_what_does_not_fit_is_refused(make, message):
  with pytest.raises(UsageError, match=message):
    make()
