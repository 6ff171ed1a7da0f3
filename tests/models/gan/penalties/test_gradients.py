"""Gradient penalties against closed forms, finite differences and a plain loop over examples."""

from models.gan.penalties.gradients import r1, r2, wgan_gp
from models.gan.penalties.scores import Scores
from replicator import SpectralNorm, UsageError, random
from tests.models.gan.networks.plain import slopes
from tests.models.gan.penalties.conftest import make_discriminator

import gin
import numpy as np
import pytest
import tensorflow as tf

REAL, FAKE = np.random.default_rng(0).normal(size=[2, 4, 6, 6, 2])
MATRIX = np.random.default_rng(1).normal(size=[72, 72])
MATRIX += MATRIX.T


def quadratic(images, labels=None, training=False):
  """x^T A x / 2, whose gradient is A x."""
  flat = tf.reshape(images, [-1, 72])
  return tf.reduce_sum(flat * tf.matmul(flat, MATRIX), 1) / 2


def scored(discriminator, real=REAL, fake=FAKE) -> Scores:
  return Scores(discriminator, tf.constant(real), tf.constant(fake))


@pytest.mark.parametrize(("penalty", "images"), [(r1, REAL), (r2, FAKE)])
def test_r1_and_r2_are_half_gamma_times_the_mean_square_norm(penalty, images, float64):
  gin.parse_config(f"{penalty.__name__}.gamma = 3.0")
  expected = 3 / 2 * np.mean(np.sum((images.reshape(4, 72) @ MATRIX) ** 2, 1))
  np.testing.assert_allclose(penalty()(scored(quadratic)), expected, rtol=1e-12)


def test_wgan_gp_is_the_distance_of_the_norm_from_1_between_the_images(float64):
  points, seen = [], []

  def linear(images, labels, training):
    points.append(images.numpy())
    seen.append((labels.numpy().tolist(), training))
    return 3.0 * images[:, 0, 0, 0] - 4.0 * images[:, 1, 2, 1]  # Its gradient has norm 5.

  scores = Scores(linear, tf.constant(REAL), tf.constant(FAKE), tf.range(4), tf.range(4, 8))
  np.testing.assert_allclose(wgan_gp(weight=2.0)(scores), 2.0 * (5 - 1) ** 2, rtol=1e-12)
  assert seen == [(list(range(8)), True), ([0, 1, 2, 3], False)]
  share = (points[1] - FAKE) / (REAL - FAKE)
  np.testing.assert_allclose(share, np.broadcast_to(share[:, :1, :1, :1], share.shape), rtol=1e-7)
  shares = share[:, 0, 0, 0]
  assert len(set(shares.round(6))) == 4 and shares.min() >= 0 and shares.max() < 1


def test_wgan_gp_has_finite_derivatives_where_the_gradient_is_zero(float64):
  factor = tf.Variable(0.0, dtype=tf.float64)
  with tf.GradientTape() as tape:
    penalty = wgan_gp()(scored(lambda images, labels=None, training=False:
                               factor * tf.reduce_sum(images, [1, 2, 3])))
  assert float(penalty) == 10.0 and float(tape.gradient(penalty, factor)) == 0.0


def test_wgan_gp_needs_pairs():
  with pytest.raises(UsageError, match="4 real and 2 generated images do not make pairs"):
    wgan_gp()(scored(quadratic, fake=FAKE[:2]))


@pytest.mark.parametrize("penalty", [r1, wgan_gp])
def test_second_derivatives_are_those_of_finite_differences(penalty, float64):
  # Through a folded convolution, layer normalization and spectral normalization, whose singular
  # vectors count as constants. That makes no difference where they have converged.
  discriminator = make_discriminator()
  for layer in discriminator.chain.layers:
    if isinstance(layer, SpectralNorm):
      layer.power_iterations = 0
      *_, leading = np.linalg.svd(np.reshape(layer.kernel, [-1, layer.kernel.shape[-1]]))
      layer.u.assign(leading[:1])

  def loss():
    random.set_seed(0)  # The same points between the images.
    return penalty()(scored(discriminator))

  variables = [v.value for v in discriminator.trainable_variables]
  np.testing.assert_allclose(*slopes(variables, loss), rtol=1e-6)
