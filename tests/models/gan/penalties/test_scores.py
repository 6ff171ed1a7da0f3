"""One call of the discriminator, its gradients, and what makes them wrong."""

import replicator
from models.gan.penalties.consistency import consistency
from models.gan.penalties.gradients import r1, wgan_gp
from models.gan.penalties.scores import Scores
from replicator import Replicator, UsageError
from tests.models.gan.penalties.conftest import Judge, make_discriminator

import keras
import numpy as np
import pytest
import tensorflow as tf

REAL, FAKE = np.random.default_rng(0).normal(size=[2, 4, 6, 6, 2])


def judge(*layers: keras.layers.Layer) -> Judge:
  return Judge([*layers, keras.layers.Flatten(), keras.layers.Dense(1)])


def test_scores_are_those_of_one_call(float64):
  discriminator = make_discriminator()
  calls = []
  scores = Scores(lambda images, labels, training: calls.append(images.shape) or discriminator(
      images, labels, training=training), tf.constant(REAL), tf.constant(FAKE[:3]))
  assert calls == [(7, 6, 6, 2)]
  expected = Scores(make_discriminator(), tf.constant(REAL), tf.constant(FAKE[:3]))
  np.testing.assert_allclose(scores.real, expected.real, rtol=1e-12)
  assert scores.fake.shape == [3]


@pytest.mark.parametrize("layer", [replicator.GlobalBatchNorm, keras.layers.BatchNormalization])
def test_batch_normalization_never_mixes_images_with_samples(float64, layer):
  discriminator = judge(layer())
  # The generator's update judges samples alone: their scores are the same there.
  samples_alone = discriminator(tf.constant(FAKE), training=True)
  scores = Scores(discriminator, tf.constant(10 * REAL), tf.constant(FAKE))
  np.testing.assert_allclose(scores.fake, samples_alone, rtol=1e-12)
  np.testing.assert_allclose(scores.real, discriminator(tf.constant(10 * REAL), training=True),
                             rtol=1e-12)


def test_gradients_are_taken_before_the_augmentation(float64):
  weights = np.random.default_rng(1).normal(size=[6, 6, 2])
  scores = Scores(lambda images, labels, training: tf.einsum("nhwc,hwc->n", images, weights),
                  tf.constant(REAL), tf.constant(FAKE), augment=lambda images: 3 * images[:, ::-1])
  np.testing.assert_array_equal(scores.real_seen, 3 * REAL[:, ::-1])
  for gradients in scores.gradients:
    np.testing.assert_allclose(gradients, [3 * weights[::-1]] * 4, rtol=1e-12)


@pytest.mark.parametrize("penalty, make, message", [
    *((penalty, make, f"judge.*{make.__name__}.* depend on the rest of the")
      for make in (replicator.GlobalBatchNorm, keras.layers.BatchNormalization)
      for penalty in (r1, wgan_gp, consistency)),
    (r1, keras.layers.LayerNormalization, "LayerNormalization. has wrong second derivatives"),
    (r1, lambda: keras.layers.GroupNormalization(2), "GroupNormalization. has wrong second"),
    *((r1, lambda make=make: make(0.5), r"judge.*\(Dropout\) draws random numbers for each row")
      for make in (replicator.Dropout, keras.layers.Dropout))])
def test_layers_that_make_a_penalty_wrong_are_refused(penalty, make, message):
  images = tf.constant(REAL, tf.float32)
  with pytest.raises(UsageError, match=message):
    penalty()(Scores(judge(make()), images, images))


@pytest.mark.parametrize("penalty", [r1, wgan_gp])
def test_an_operation_without_second_derivatives_is_named(penalty):
  class Resize(keras.layers.Layer):
    def call(self, x):
      return tf.image.resize(x, [3, 3])

  discriminator = judge(Resize())
  images = tf.constant(REAL, tf.float32)

  with pytest.raises(UsageError, match=r"judge.*TensorFlow does not have those of ResizeBilinear"):
    Replicator().run(lambda: penalty()(Scores(discriminator, images, images)))
