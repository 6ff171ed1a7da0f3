"""The BigGAN-deep networks: published sizes, the functions that they compute, what they refuse."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from models.gan.networks.biggan_deep import (
  UP,
  BigGANDeepDiscriminator,
  BigGANDeepGenerator,
  DeepDownBlock,
  DeepUpBlock,
)
from replicator.errors import UsageError
from tests.models.gan.networks.plain import normalized, pooled
from tests.models.gan.networks.sizes import count_parameters

LABELS = tf.constant([2, 0, 1])


@pytest.fixture(scope="module")
def networks():
  """A float64 generator and discriminator for 16 pixels, moved from their zeros and ones."""
  keras.utils.set_random_seed(0)
  keras.config.set_dtype_policy("float64")
  generator = BigGANDeepGenerator(16, 3, 5, 3, width=4, embedding_dim=4, attention=8)
  discriminator = BigGANDeepDiscriminator(16, 3, 3, width=4, attention=8, leak=0.25)
  random = np.random.default_rng(1)
  for v in generator.trainable_variables + discriminator.trainable_variables:
    v.assign(v + 0.1 * random.normal(size=v.shape))
  keras.config.set_dtype_policy("float32")
  return generator, discriminator


def normal(*shape):
  return tf.constant(np.random.default_rng(0).normal(size=shape))


@pytest.mark.parametrize("network, resolution, parameters", [
    # google/compare_gan, resnet_biggan_deep_test.py.
    (BigGANDeepGenerator, 128, 50_244_484), (BigGANDeepDiscriminator, 128, 34_590_210),
    # Derived from compare_gan's tables, z 128.
    *(pytest.param(*case, marks=pytest.mark.slow) for case in [
        (BigGANDeepGenerator, 256, 55_736_708), (BigGANDeepDiscriminator, 256, 38_247_426),
        (BigGANDeepGenerator, 512, 56_019_780), (BigGANDeepDiscriminator, 512, 38_301_122)])])
def test_sizes(network, resolution, parameters):
  assert count_parameters(lambda: network(resolution, num_classes=1000)) == parameters


@pytest.mark.parametrize("num_classes", [0, 4])
@pytest.mark.parametrize("resolution", [
    8, *(pytest.param(r, marks=pytest.mark.slow) for r in UP if r > 8)])
def test_shapes_and_ranges(resolution, num_classes):
  generator = BigGANDeepGenerator(resolution, 1, 3, num_classes, width=4)
  discriminator = BigGANDeepDiscriminator(resolution, 1, num_classes, width=4)
  variables = [len(network.variables) for network in (generator, discriminator)]
  labels = tf.constant([0, 3]) if num_classes else None
  images = generator(tf.cast(normal(2, 3), tf.float32), labels, training=True)
  assert images.shape == (2, resolution, resolution, 1) and images.dtype == tf.float32
  assert np.abs(images).max() <= 1
  assert discriminator(images, labels, training=True).shape == (2,)
  assert discriminator.features(images).shape == (2, discriminator.num_features)
  assert [len(network.variables) for network in (generator, discriminator)] == variables


def conv(x, layer):
  return tf.nn.conv2d(x, normalized(layer), 1, "SAME") + layer.layer.bias


def built(block, shape):
  block.build(shape)
  for v in block.trainable_variables:
    v.assign(v + 0.1 * np.random.default_rng(2).normal(size=v.shape))
  return block


@pytest.fixture
def float64():
  keras.config.set_dtype_policy("float64")
  yield
  keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize("double", [False, True])
def test_up_block_equals_the_plain_one(float64, double):
  # Figure 16 of the paper: 1x1, 3x3, 3x3, 1x1 with a quarter of the channels between them. The
  # shortcut drops channels.
  block = built(DeepUpBlock(4, 5, double, leak=0.25), (None, 4, 4, 8))
  x, condition = normal(3, 4, 4, 8), normal(3, 5)
  h = x
  for i, (norm, convolution) in enumerate(zip(block.norms, block.convs, strict=True)):
    mean, variance = tf.nn.moments(h, [0, 1, 2])
    h = (h - mean) / tf.sqrt(variance + 1e-5)
    h = h * (1 + condition @ normalized(norm.gain))[:, None, None]
    h += (condition @ normalized(norm.offset))[:, None, None]
    h = tf.where(h > 0, h, 0.25 * h)
    if i == 1 and double:
      h = tf.repeat(tf.repeat(h, 2, 1), 2, 2)
    h = conv(h, convolution)
    assert h.shape[-1] == (4 if i == 3 else 2)
  shortcut = x[..., :4]
  shortcut = tf.repeat(tf.repeat(shortcut, 2, 1), 2, 2) if double else shortcut
  np.testing.assert_allclose(block(x, condition, training=True), h + shortcut, rtol=1e-9)


@pytest.mark.parametrize("halve, filters", [(True, 8), (False, 4)])
def test_down_block_equals_the_plain_one(float64, halve, filters):
  block = built(DeepDownBlock(filters, halve, leak=0.0), (None, 4, 4, 4))
  x = normal(3, 4, 4, 4)
  h = x
  for convolution in block.convs[:-1]:
    h = conv(tf.nn.relu(h), convolution)
  h = tf.nn.relu(h)
  h = conv(pooled(h) if halve else h, block.convs[-1])
  shortcut = pooled(x) if halve else x
  if filters > 4:
    shortcut = tf.concat([shortcut, conv(shortcut, block.added)], -1)
  else:
    assert block.added is None
  np.testing.assert_allclose(block(x), h + shortcut, rtol=1e-9)


def test_the_discriminator_projects_its_features_on_the_class(networks):
  _, discriminator = networks
  images = tf.tanh(normal(3, 16, 16, 3))
  h = discriminator.features(images)
  linear, rows = normalized(discriminator.linear), normalized(discriminator.embedding)
  expected = h @ linear[:, 0][:, None] + discriminator.linear.layer.bias
  expected = expected[:, 0] + np.sum(rows[LABELS.numpy()] * h, 1)
  np.testing.assert_allclose(discriminator(images, LABELS), expected, rtol=1e-10)


@pytest.mark.parametrize("make, message", [
    (lambda: BigGANDeepGenerator(48), "BigGANDeepGenerator.resolution = 48: .*8, 16, 32, 64, 128"),
    (lambda: BigGANDeepDiscriminator(48), "BigGANDeepDiscriminator.resolution = 48: "),
    (lambda: BigGANDeepGenerator(8, attention=64), "attention = 64: .*4, 8 pixel"),
    (lambda: BigGANDeepDiscriminator(8, attention=8), "attention = 8: .*have 4 pixels"),
    (lambda: BigGANDeepGenerator(8, 1, 4, 2, width=1)(np.zeros([1, 4])), "given no labels"),
    (lambda: BigGANDeepDiscriminator(8, 1, 2, width=1)(np.zeros([1, 8, 8, 1])), "given no labels"),
    (lambda: BigGANDeepDiscriminator(8, 1, width=1)(np.zeros([1, 4, 4, 1])), "8 x 8 x 1 but was"),
])
def test_what_does_not_fit_is_refused(make, message):
  with pytest.raises(UsageError, match=message):
    make()
