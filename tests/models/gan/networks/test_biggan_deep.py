"""The BigGAN-deep networks: the functions that they compute."""

from models.gan.networks import biggan_deep
from models.gan.networks.attention import SelfAttention
from models.gan.networks.biggan_deep import BigGANDeepDiscriminator, BigGANDeepGenerator
from tests.models.gan.networks import plain
from tests.models.gan.networks.plain import normal, normalized, pooled, upsampled

import numpy as np
import pytest
import tensorflow as tf

LABELS = tf.constant([2, 0, 1])


def built(block, shape):
  block.build(shape)
  for v in block.trainable_variables:
    v.assign(v + 0.1 * np.random.default_rng(2).normal(size=v.shape))
  return block


@pytest.mark.parametrize("double", [False, True])
def test_up_block_equals_the_plain_one(float64, double):
  # Figure 16 of the paper: 1x1, 3x3, 3x3, 1x1 with a quarter of the channels between them. The
  # shortcut drops channels.
  block = built(biggan_deep.DeepUpBlock(4, 5, double, negative_slope=0.25), (None, 4, 4, 8))
  x, condition = normal(3, 4, 4, 8), normal(3, 5)
  h = x
  for i, (norm, convolution) in enumerate(zip(block.norms, block.convs, strict=True)):
    h = plain.standardized(h) * (1 + condition @ normalized(norm.gain))[:, None, None]
    h += (condition @ normalized(norm.offset))[:, None, None]
    h = tf.where(h > 0, h, 0.25 * h)
    if i == 1 and double:
      h = upsampled(h)
    h = plain.spectral_conv(h, convolution)
    assert h.shape[-1] == (4 if i == 3 else 2)
  shortcut = x[..., :4]
  shortcut = upsampled(shortcut) if double else shortcut
  np.testing.assert_allclose(block(x, condition, training=True), h + shortcut, rtol=1e-9)


@pytest.mark.parametrize("halve, filters", [(True, 8), (False, 4)])
def test_down_block_equals_the_plain_one(float64, halve, filters):
  block = built(biggan_deep.DeepDownBlock(filters, halve, negative_slope=0.0), (None, 4, 4, 4))
  x = normal(3, 4, 4, 4)
  h = x
  for convolution in block.convs[:-1]:
    h = plain.spectral_conv(tf.nn.relu(h), convolution)
  h = tf.nn.relu(h)
  h = plain.spectral_conv(pooled(h) if halve else h, block.convs[-1])
  shortcut = pooled(x) if halve else x
  if filters > 4:
    shortcut = tf.concat([shortcut, plain.spectral_conv(shortcut, block.added)], -1)
  else:
    assert block.added is None
  np.testing.assert_allclose(block(x), h + shortcut, rtol=1e-9)


def test_attention_is_after_the_first_map_of_its_size_and_in_the_discriminator_after_the_last():
  # Maps have 4, 8, 8 and 16 pixels, and after the first convolution 8, 8, 4 and 4.
  for make, place in ((BigGANDeepGenerator, 2), (BigGANDeepDiscriminator, 3)):
    network = make(16, 1, base_channels=2, attention=8)
    places = [i for i, layer in enumerate(network.trunk) if isinstance(layer, SelfAttention)]
    assert places == [place]


def test_the_discriminator_projects_its_features_on_the_class(float64):
  discriminator = BigGANDeepDiscriminator(16, 3, 3, base_channels=4, attention=8,
                                          negative_slope=0.25)
  images = tf.tanh(normal(3, 16, 16, 3))
  h = discriminator.features(images)
  linear, rows = normalized(discriminator.linear), normalized(discriminator.embedding)
  expected = h @ linear[:, 0][:, None] + discriminator.linear.layer.bias
  expected = expected[:, 0] + np.sum(rows[LABELS.numpy()] * h, 1)
  np.testing.assert_allclose(discriminator(images, LABELS), expected, rtol=1e-10)
