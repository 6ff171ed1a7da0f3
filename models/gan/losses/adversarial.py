"""Adversarial losses of a discriminator and a generator, as functions of scores.

A score is the discriminator's output: high means real. Every loss is the mean over the replica's
own examples, in float64 for float64 scores and in float32 for all others. TF-GAN computes all but
`relativistic`. Gin refers to them by name: `SNGAN.loss = @hinge`.
"""

import dataclasses
import functools
from collections.abc import Callable

from models.gan.losses import tfgan

import gin
import keras
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class AdversarialLoss:
  """The losses of the two networks."""

  # Real and generated scores of equal shapes, [n] or [n, 1] -> [].
  discriminator: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
  generator: Callable[..., tf.Tensor]  # Generated scores, [n] or [n, 1] -> [].
  middle: float = 0.0  # The score halfway between real and generated.

  def encoder(self, real: tf.Tensor) -> tf.Tensor:
    """Returns the loss for making real pairs look generated, `[n] -> []`: mirrors `generator`."""
    return self.generator(2 * self.middle - real)

  def accuracy(self, real: tf.Tensor, fake: tf.Tensor) -> tf.Tensor:
    """Returns the fraction [] of correct scores: real ones `[n]` high, generated ones `[m]` low."""
    return accuracy(real - self.middle, fake - self.middle)


def _loss(name: str, discriminator: dict[str, float] | None = None,
          generator: dict[str, float] | None = None) -> AdversarialLoss:
  """Wraps TF-GAN's `NAME_discriminator_loss` and `NAME_generator_loss`, with their options."""
  module = tfgan.losses()
  return AdversarialLoss(
      functools.partial(getattr(module, f"{name}_discriminator_loss"), loss_collection=None,
                        **discriminator or {}),
      functools.partial(getattr(module, f"{name}_generator_loss"), loss_collection=None,
                        **generator or {}))


@gin.configurable
def hinge() -> AdversarialLoss:
  """Makes the hinge losses: mean(max(0, 1 - real)) + mean(max(0, 1 + fake)), and -mean(fake).

  Correct scores beyond 1 give the discriminator no gradient.

  Reference: Miyato et al. 2018 (arXiv:1802.05957), equations 16 and 17.
  """
  return _loss("wasserstein_hinge")


@gin.configurable
def wasserstein() -> AdversarialLoss:
  """Makes the Wasserstein losses: mean(fake) - mean(real), and -mean(fake).

  The discriminator must be Lipschitz. Reference: Arjovsky et al. 2017 (arXiv:1701.07875).
  """
  return _loss("wasserstein")


@gin.configurable
def minimax(label_smoothing: float = 0.0) -> AdversarialLoss:
  """Makes the minimax losses.

  The discriminator's is mean(softplus(-real)) + mean(softplus(fake)), and the generator's is
  -mean(softplus(fake)) minus a constant.

  Args:
    label_smoothing: changes the label of real examples from 1 to 1 - label_smoothing / 2.

  Reference: Goodfellow et al. 2014 (arXiv:1406.2661), equation 1.
  """
  return _loss("minimax", {"label_smoothing": label_smoothing})


@gin.configurable
def modified(label_smoothing: float = 0.0) -> AdversarialLoss:
  """Makes the non-saturating losses: the discriminator's of `minimax`, and mean(softplus(-fake)).

  Also called the softplus loss, or the non-saturating logistic loss (StyleGAN).

  Args:
    label_smoothing: changes the label of real examples from 1 to 1 - label_smoothing / 2.

  Reference: Goodfellow et al. 2014 (arXiv:1406.2661), section 3.
  """
  return _loss("modified", {"label_smoothing": label_smoothing})


@gin.configurable
def least_squares(real_label: float = 1.0, fake_label: float = 0.0) -> AdversarialLoss:
  """Makes the least-squares losses.

  The discriminator's is (mean((real - real_label)^2) + mean((fake - fake_label)^2)) / 2, and the
  generator's is mean((fake - real_label)^2) / 2.

  Args:
    real_label: the target score of real examples, and of the generator.
    fake_label: the target score of generated examples.

  Reference: Mao et al. 2016 (arXiv:1611.04076), equation 9.
  """
  return dataclasses.replace(
      _loss("least_squares", {"real_label": real_label, "fake_label": fake_label},
            {"real_label": real_label}), middle=(real_label + fake_label) / 2)


def relativistic(scores: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
  """Returns mean(softplus(others - scores)): each score should exceed its counterpart.

  `[n], [n] -> []`. The discriminator minimizes `relativistic(real, fake)`, and the generator
  `relativistic(fake, real)`. There is no fixed boundary, so the discriminator cannot lower its loss
  by pushing all samples to one side, which would make the generator drop modes.

  Reference: Jolicoeur-Martineau 2018 (arXiv:1807.00734), section 4.1.2; Huang et al. 2024
  (arXiv:2501.05441), equation 2.
  """
  return tf.reduce_mean(tf.nn.softplus(tfgan.exact(others - scores)))


def accuracy(real: tf.Tensor, fake: tf.Tensor) -> tf.Tensor:
  """Returns the fraction [] of correct scores: real ones `[n]` above 0, generated ones `[m]` below.
  """
  is_right = tf.concat([real > 0, fake < 0], 0)
  return tf.reduce_mean(tf.cast(is_right, keras.config.floatx()))
