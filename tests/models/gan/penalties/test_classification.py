"""ACGAN's classification loss, and what scores are with a classifier beside them."""

from models.gan.penalties.classification import classification, cross_entropy
from models.gan.penalties.gradients import r1
from models.gan.penalties.scores import Scores
from replicator import UsageError

import numpy as np
import pytest
import tensorflow as tf

REAL, FAKE = np.random.default_rng(0).normal(size=[2, 4, 6, 6, 1])
REAL_LABELS, FAKE_LABELS = np.array([0, 2, 1, 1]), np.array([2, 2, 0, 1])


def classifying(images, labels, training):
  """The score is the mean, and the logits are three rows of the image."""
  return tf.reduce_mean(images, [1, 2, 3]), images[:, :3, 0, 0]


def scores_of(discriminator):
  return Scores(discriminator, tf.constant(REAL), tf.constant(FAKE[:3]), tf.constant(REAL_LABELS),
                tf.constant(FAKE_LABELS[:3]))


def by_hand(images, labels):
  logits = images[:, :3, 0, 0]
  log_sums = np.log(np.exp(logits).sum(1))
  return np.mean(log_sums - logits[np.arange(len(labels)), labels])


@pytest.mark.parametrize("of_fakes", [0.0, 0.5])
def test_the_loss_is_the_formula(of_fakes, float64):
  expected = 2 * (by_hand(REAL, REAL_LABELS) + of_fakes * by_hand(FAKE[:3], FAKE_LABELS[:3]))
  found = classification(weight=2.0, of_fakes=of_fakes)(scores_of(classifying))
  np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_half_precision_logits_give_a_float32_loss():
  loss = cross_entropy(tf.constant(REAL[:, :3, 0, 0], tf.bfloat16), tf.constant(REAL_LABELS))
  assert loss.dtype == tf.float32
  np.testing.assert_allclose(loss, by_hand(REAL, REAL_LABELS), rtol=0.01)


def test_scores_are_those_without_a_classifier(float64):
  alone = scores_of(lambda *args, **kwargs: classifying(*args, **kwargs)[0])
  both = scores_of(classifying)
  np.testing.assert_array_equal(both.real, alone.real)
  np.testing.assert_array_equal(both.fake, alone.fake)
  assert both.fake_logits.shape == [3, 3] and alone.fake_logits is None
  np.testing.assert_array_equal(r1()(both), r1()(alone))
  np.testing.assert_array_equal(both.again(both.real_images, None), both.real)


def test_a_discriminator_without_a_classifier_is_refused():
  scores = scores_of(lambda images, labels, training: tf.reduce_mean(images, [1, 2, 3]))
  with pytest.raises(UsageError, match=r"returns only scores; set .*@ACGANDiscriminator"):
    classification()(scores)
