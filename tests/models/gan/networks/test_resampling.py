"""Folded resampling convolutions against the plain compositions that they replace."""

from models.gan.networks import resampling
from models.gan.networks.resampling import ConvDownsample2D, UpsampleConv2D
from tests.models.gan.networks.plain import pooled, upsampled

import numpy as np
import pytest
import tensorflow as tf

SIZES = [(3, 4, 4), (1, 2, 2), (5, 6, 10), (2, 16, 16)]  # batch, height, width
LAYERS = [UpsampleConv2D, ConvDownsample2D]


def plain(layer_class, x, kernel, bias):
  """The composition as the papers state it, in elementary operations."""
  x = upsampled(x) if layer_class is UpsampleConv2D else x
  y = tf.nn.conv2d(x, kernel, 1, "SAME") + bias
  return y if layer_class is UpsampleConv2D else pooled(y)


def layer_and_arrays(layer_class, size, dtype="float64"):
  random = np.random.default_rng(0)
  layer = layer_class(5, dtype=dtype)
  layer.build((None, *size[1:], 3))
  layer.kernel.assign(random.normal(size=[3, 3, 3, 5]))
  layer.bias.assign(random.normal(size=[5]))
  x = tf.constant(random.normal(size=[*size, 3]))
  dy = tf.constant(random.normal(size=layer.compute_output_shape(x.shape)))
  return layer, x, dy


def test_upsample_repeats_pixels_and_downsample_undoes_it():
  images = tf.reshape(tf.range(2. * 2 * 3 * 2), [2, 2, 3, 2])
  large = resampling.upsample(images)
  np.testing.assert_array_equal(large, np.repeat(np.repeat(images, 2, axis=1), 2, axis=2))
  np.testing.assert_array_equal(resampling.downsample(large), images)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("layer_class", LAYERS)
def test_values_and_gradients_are_those_of_the_composition(layer_class, size):
  layer, x, dy = layer_and_arrays(layer_class, size)
  sources = [x, layer.kernel.value, layer.bias.value]
  with tf.GradientTape(persistent=True) as tape:
    tape.watch(x)
    y = layer(x)
    expected = plain(layer_class, *sources)
  np.testing.assert_allclose(y, expected, atol=1e-12, rtol=1e-12)
  gradients = tape.gradient(y, sources, output_gradients=dy)
  expected_gradients = tape.gradient(expected, sources, output_gradients=dy)
  for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("height, width", [(5, 4), (4, 5), (5, 5)])
def test_odd_sizes_cannot_be_halved(height, width):
  with pytest.raises(ValueError, match=f"they are {height} and {width}"):
    ConvDownsample2D(2).build((None, height, width, 1))
