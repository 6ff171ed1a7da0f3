"""The gradient of the authors' code, and which variables have one."""

from models.gan.penalties.orthogonality import orthogonality, products_of_filters
from models.gan.penalties.scores import Scores
from replicator import SpectralNorm
from tests.models.gan.penalties.conftest import Judge

import keras
import numpy as np
import pytest
import tensorflow as tf


def test_the_gradient_is_that_of_the_authors_code(float64):
  network = Judge([keras.layers.Conv2D(4, 3), keras.layers.LayerNormalization(),
                   keras.layers.Flatten(), keras.layers.Dense(1)])
  images = tf.zeros([1, 6, 6, 2], tf.float64)
  with tf.GradientTape() as tape:
    penalty = orthogonality(weight=0.5)(Scores(network, images, images))
  gradients = tape.gradient(penalty, network.trainable_variables)
  of_kernel = np.reshape(gradients[0], [18, 4])
  rows = np.reshape(network.trainable_variables[0], [18, 4]).T  # A row for each output.
  products = rows @ rows.T * (1 - np.eye(4))
  np.testing.assert_allclose(of_kernel.T, 0.5 * 2 * products @ rows, rtol=1e-12)
  # The other kernel has one output, and so no pair.
  assert [i for i, gradient in enumerate(gradients)
          if gradient is not None and np.any(gradient)] == [0]


def test_orthogonal_filters_have_no_penalty(float64):
  network = Judge([keras.layers.Flatten(),
                   keras.layers.Dense(8, kernel_initializer=keras.initializers.Orthogonal(2.0))])
  images = tf.zeros([1, 6, 6, 2], tf.float64)
  np.testing.assert_allclose(orthogonality()(Scores(network, images, images)), 0, atol=1e-12)


L = keras.layers


@pytest.mark.parametrize("make, outputs", [
    (lambda: L.Conv2DTranspose(4, 3), [2]),
    (lambda: SpectralNorm(L.Conv2DTranspose(4, 3)), [2]),
    (lambda: L.DepthwiseConv2D(3, depth_multiplier=2), [2, 3]),
    (lambda: L.Conv2D(4, 3, groups=2), [3])],
    ids=["transposed", "normalized", "depthwise", "grouped"])
def test_outputs_are_where_the_layer_of_a_kernel_keeps_them(float64, make, outputs):
  network = keras.Sequential([keras.Input([6, 6, 2]), make()])
  kernel = network.trainable_variables[0].numpy()
  rows = np.moveaxis(kernel, outputs, range(len(outputs))).reshape(
      np.prod([kernel.shape[axis] for axis in outputs]), -1)
  products = rows @ rows.T
  expected = (np.sum(products ** 2) - np.sum(np.diag(products) ** 2)) / 2
  np.testing.assert_allclose(products_of_filters(network), expected, rtol=1e-12)
