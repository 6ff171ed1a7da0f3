"""Labels of all generators, and mixtures of classes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from models.gan.networks.biggan import BigGANGenerator
from models.gan.networks.biggan_deep import BigGANDeepGenerator
from models.gan.networks.building import class_weights
from models.gan.networks.dcgan import DCGANGenerator
from models.gan.networks.r3gan import R3GANGenerator
from models.gan.networks.sngan import SNGANGenerator

GENERATORS = {
    "biggan": lambda: BigGANGenerator(8, 1, 6, num_classes=3, width=2, embedding_dim=4),
    "biggan_deep": lambda: BigGANDeepGenerator(8, 1, 6, num_classes=3, width=2, embedding_dim=4),
    "dcgan": lambda: DCGANGenerator(8, 1, 6, num_classes=3, width=2),
    "r3gan": lambda: R3GANGenerator(8, 1, 6, num_classes=3, widths=(4, 4)),
    "sngan": lambda: SNGANGenerator(8, 1, 6, num_classes=3, width=0.0625)}


def test_weights_are_one_hot_rows_or_given():
  np.testing.assert_array_equal(class_weights(np.array([2, 0]), 3, "float64"),
                                [[0, 0, 1], [1, 0, 0]])
  given = class_weights(tf.constant([[0.25, 0.75]]), 2, "bfloat16")
  assert given.dtype == tf.bfloat16 and given.numpy().tolist() == [[0.25, 0.75]]


@pytest.mark.parametrize("name", GENERATORS)
def test_a_generator_mixes_classes(name):
  keras.utils.set_random_seed(0)
  generator = GENERATORS[name]()
  random = np.random.default_rng(1)
  for v in generator.trainable_variables:
    v.assign(v + 0.3 * random.normal(size=v.shape))
  z = tf.constant(np.repeat(random.normal(size=[1, 6]), 3, 0), "float32")
  of_labels = generator(z, tf.constant([0, 2, 2]))
  of_weights = generator(z, tf.constant([[1.0, 0, 0], [0.5, 0, 0.5], [0, 0, 1.0]]))
  np.testing.assert_allclose(of_weights[::2], of_labels[::2], atol=1e-6)
  assert np.abs(of_labels[0] - of_labels[2]).max() > 1e-4
  assert np.abs(of_weights[1] - of_labels[0]).max() > 1e-5
  assert np.abs(of_weights[1] - of_labels[2]).max() > 1e-5
