"""The objective of BigBiGAN against its equations."""

import numpy as np
import tensorflow as tf

from models.gan.losses import bigbigan
from models.gan.networks.bigbigan import PairScores

REAL, GENERATED = np.random.default_rng(0).normal(size=[2, 3, 10], scale=1.5)


def scores(values: np.ndarray) -> PairScores:
  return PairScores(*map(tf.constant, values))


def test_the_discriminator_has_a_hinge_loss_for_each_score():
  # Equation 3: the sum over the three scores of max(0, 1 - y s), y 1 for real and -1 for generated.
  expected = sum(np.mean(np.maximum(0, 1 - real)) + np.mean(np.maximum(0, 1 + generated))
                 for real, generated in zip(REAL, GENERATED, strict=True))
  loss = bigbigan.discriminator_loss(scores(REAL), scores(GENERATED))
  np.testing.assert_allclose(loss, expected, rtol=1e-14)


def test_encoder_and_generator_have_the_sums_of_the_scores():
  # Equation 4: the mean of y (s_xz + s_x + s_z).
  np.testing.assert_allclose(bigbigan.encoder_loss(scores(REAL)), REAL.sum(0).mean(),
                             rtol=1e-14)
  np.testing.assert_allclose(bigbigan.generator_loss(scores(GENERATED)),
                             -GENERATED.sum(0).mean(), rtol=1e-14)
