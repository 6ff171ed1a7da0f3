"""Consistency of scores under an augmentation whose effect is known."""

from models.gan.penalties.consistency import consistency
from models.gan.penalties.scores import Scores
from tests.models.gan.penalties.conftest import make_discriminator

import numpy as np
import pytest
import tensorflow as tf

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


def test_an_augmentation_that_changes_nothing_has_no_penalty(float64):
  discriminator, images = make_discriminator(), tf.repeat(tf.constant(REAL), 2, -1)
  for _ in range(2):  # The singular vectors are far from those that they follow.
    scores = Scores(discriminator, images, tf.repeat(tf.constant(FAKE), 2, -1))
    found = consistency(of_fakes=1.0, augment=lambda: tf.identity)(scores)
    np.testing.assert_allclose(found, 0, atol=1e-25)
