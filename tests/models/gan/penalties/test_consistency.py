"""Consistency of scores under an augmentation whose effect is known."""

import numpy as np
import pytest
import tensorflow as tf

from models.gan.penalties.consistency import consistency
from models.gan.penalties.scores import Scores

REAL, FAKE = np.random.default_rng(0).normal(size=[2, 4, 6, 6, 1])


def mean_of_pixels(images, labels, training):
  return tf.reduce_mean(images, [1, 2, 3]) + 100 * tf.cast(labels, images.dtype)


def doubling():
  return lambda images: 2 * images


@pytest.mark.parametrize("of_fakes", [0.0, 0.5])
def test_the_change_of_scores_is_penalized(of_fakes, float64):
  scores = Scores(mean_of_pixels, tf.constant(REAL), tf.constant(FAKE),
                  tf.constant([0, 1, 2, 3]), tf.constant([3, 0, 2, 1]))
  expected = 3 * (np.mean(REAL.mean((1, 2, 3)) ** 2)
                  + of_fakes * np.mean(FAKE.mean((1, 2, 3)) ** 2))
  found = consistency(weight=3.0, of_fakes=of_fakes, augment=doubling)(scores)
  np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_the_default_augmentation_moves_images(float64):
  corner = lambda images, labels, training: images[:, 0, 0, 0]
  assert float(consistency()(Scores(corner, tf.constant(REAL), tf.constant(FAKE)))) > 0
  constant = tf.ones([4, 6, 6, 1], tf.float64)
  assert float(consistency()(Scores(corner, constant, constant))) == 0
