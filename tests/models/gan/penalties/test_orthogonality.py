"""The gradient of the authors' code, and which variables have one."""

import keras
import numpy as np
import tensorflow as tf

from models.gan.penalties.orthogonality import orthogonality
from models.gan.penalties.scores import Scores
from tests.models.gan.penalties.conftest import Judge


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
