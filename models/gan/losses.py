"""What a discriminator and a generator are trained on, as functions of the scores.

A score is the discriminator's output: high says real. Every loss is the mean over the
replica's own examples.
"""

import gin
import tensorflow as tf

from models.gan import tfgan


@gin.configurable(denylist=["real_scores", "fake_scores"])
def hinge_discriminator_loss(real_scores: tf.Tensor, fake_scores: tf.Tensor) -> tf.Tensor:
  """mean(max(0, 1 - real)) + mean(max(0, 1 + fake)): two equal shapes, [n] or [n, 1] -> [].

  Scores beyond +-1 on the right side give no gradient. Computed by TF-GAN, in float64 for
  float64 scores and in float32 for all others.

  Raises:
    ValueError: the two shapes differ.

  Reference: Miyato et al. 2018 (arXiv:1802.05957), equation 16.
  """
  return tfgan.losses().wasserstein_hinge_discriminator_loss(
      real_scores, fake_scores, loss_collection=None)


@gin.configurable(denylist=["fake_scores"])
def hinge_generator_loss(fake_scores: tf.Tensor) -> tf.Tensor:
  """-mean(fake): [n] or [n, 1] -> [].

  Computed by TF-GAN, in float64 for float64 scores and in float32 for all others.

  Reference: Miyato et al. 2018 (arXiv:1802.05957), equation 17.
  """
  return tfgan.losses().wasserstein_hinge_generator_loss(fake_scores, loss_collection=None)
