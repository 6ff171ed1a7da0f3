"""A GAN assembled from parts: the gin file chooses networks, loss, penalties and latents.

    python -m experiments.gan --gin_file=configs/wgangp_digits.gin

WGAN-GP, BigGAN, DCGAN and ACGAN are configurations of this experiment.
"""

from collections.abc import Callable, Sequence
from typing import Any

import replicator
from models.gan import gans
from models.gan.augmentation import ada, diffaugment  # noqa: F401  (for gin)
from models.gan.evaluation import sample_variance
from models.gan.latents.distributions import draw, normal_latents
from models.gan.losses import adversarial
from models.gan.networks import (  # noqa: F401  (for gin)
  acgan,
  biggan,
  biggan_deep,
  dcgan,
  r3gan,
  sngan,
)
from models.gan.networks.protocols import (
  DiscriminatorNetwork,
  EncoderNetwork,
  GANAugmentation,
  GeneratorNetwork,
)
from models.gan.penalties import classification, consistency, lecam, orthogonality  # noqa: F401  (for gin)
from models.gan.penalties import gradients as gradient_penalties  # noqa: F401  (for gin)
from models.gan.penalties.penalty import Penalty, total
from models.gan.penalties.scores import Scores, scores_and_logits
from models.vision.builtin.digits import Digits
from models.vision.images.classes import NO_CLASSES, Classes
from models.vision.images.image_source import ImageSource, to_unit_range
from replicator import app
from replicator.errors import at_least_one
from replicator.step.optimizers.schedules import Number

import gin
import keras
import tensorflow as tf


@gin.configurable(denylist=["image_shape", "classes"])
class GAN(tf.Module):
  """One training step: discriminator updates, one generator update, an optional encoder update.

  The optimizers are made in the gin scopes `discriminator`, `generator` and `encoder`.

  Args:
    image_shape: (height, width, channels) of the data.
    classes: classes of the data, used if `conditional`; sample labels follow their frequencies.
    optimizer: makes a Keras optimizer.
    generator: makes the generator, such as `@BigGANGenerator`, from resolution, channels,
      latent_dim and num_classes.
    discriminator: makes the discriminator from resolution, channels and num_classes.
    encoder: makes a network that regresses the latents of samples, such as `@Encoder`, from
      resolution, channels and latent_dim; or None.
    loss: makes the losses of discriminator and generator, one of `models.gan.losses.adversarial`.
    penalties: terms of the discriminator's loss, such as `[@r1(), @r2()]`.
    augment: makes the augmentation of all images and samples that the discriminator sees, such as
      `@DiffAugment`; or None.
    latents: draws the latents, one of `models.gan.latents.distributions`.
    latent_dim: length of a latent.
    conditional: whether generator and discriminator receive labels.
    discriminator_updates: discriminator updates per generator update, each on a separate batch.
    generator_batch_ratio: batch size of a generator update, relative to a discriminator update.
    generator_orthogonality: weight of BigGAN's orthogonal regularization (`products_of_filters`)
      in the generator's loss.
    generator_classification: weight of the samples' classification loss in the generator's loss,
      for `@ACGANDiscriminator`.

  Raises:
    UsageError: a number is below 1, or a classification loss has no classifier.
  """

  generate = gans.generate
  reconstruct = gans.reconstruct
  may_collapse = sample_variance.COLLAPSE

  def __init__(self, image_shape: tuple[int, int, int], classes: Classes,
               optimizer: Callable[[], keras.optimizers.Optimizer] = gin.REQUIRED,
               generator: Callable[..., GeneratorNetwork] = gin.REQUIRED,
               discriminator: Callable[..., DiscriminatorNetwork] = gin.REQUIRED,
               encoder: Callable[..., EncoderNetwork] | None = None,
               loss: Callable[[], adversarial.AdversarialLoss] = adversarial.hinge,
               penalties: Sequence[Penalty] = (),
               augment: Callable[[], GANAugmentation] | None = None,
               latents: Callable[[str, Sequence[int]], tf.Tensor] = normal_latents,
               latent_dim: int = 128, conditional: bool = False, discriminator_updates: int = 1,
               generator_batch_ratio: int = 1, generator_orthogonality: Number = 0.0,
               generator_classification: Number = 0.0):
    super().__init__()
    at_least_one("GAN", latent_dim=latent_dim, discriminator_updates=discriminator_updates,
                 generator_batch_ratio=generator_batch_ratio)
    shape = {"resolution": image_shape[0], "channels": image_shape[2]}
    self.loss = loss()
    self.penalties = list(penalties)
    self.augment = augment() if augment else None
    self.latents = latents
    self.latent_dim = latent_dim
    self.classes = classes if conditional else NO_CLASSES
    self.num_classes = len(self.classes)
    self.batches = discriminator_updates
    self.generator_batch_ratio = generator_batch_ratio
    self.generator_orthogonality = generator_orthogonality
    self.generator_classification = generator_classification
    self.generator = generator(**shape, latent_dim=latent_dim, num_classes=self.num_classes)
    self.discriminator = discriminator(**shape, num_classes=self.num_classes)
    self.encoder: Any = encoder(**shape, latent_dim=latent_dim) if encoder else None
    self.optimizers = replicator.wrap_optimizers(
        optimizer, discriminator=self.discriminator, generator=self.generator, encoder=self.encoder)

  def __call__(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Takes one step: `{"image": uint8 [n, h, w, c], "label": int32 [n]}` -> scalars, float [].

    The scalars are `loss/discriminator` (including penalties), `loss/generator` and, with an
    encoder, `loss/encoder`. Those of the last discriminator update are `penalty`, the sum of the
    penalties; `d_accuracy`, the fraction of images and samples classified correctly; and the
    scalars of `sample_variance.variances`. With `ADA`, `augmentation` is its p.
    """
    for part in replicator.split(batch, self.batches):
      images = to_unit_range(part["image"], keras.config.floatx())
      size = images.shape[0]
      discriminator_loss, penalty, accuracy, moments = self.optimizers["discriminator"].minimize(
          self._discriminator_loss, images, part["label"], *draw(self, size))
    generator_loss = self.optimizers["generator"].minimize(
        self._generator_loss, *draw(self, self.generator_batch_ratio * size))
    losses = {"loss/discriminator": discriminator_loss, "loss/generator": generator_loss}
    if self.encoder:
      losses["loss/encoder"] = self.optimizers["encoder"].minimize(
          self._encoder_loss, *draw(self, size))
    return {**losses, "penalty": penalty, "d_accuracy": accuracy,
            **sample_variance.variances(moments), **ada.logged(self.augment)}

  def _discriminator_loss(self, images: tf.Tensor, labels: tf.Tensor, z: tf.Tensor,
                          fake_labels: tf.Tensor) -> tuple:
    fakes = self.generator(z, fake_labels, training=True)
    scores = Scores(self.discriminator, images, fakes, labels, fake_labels, self.augment)
    if self.augment:
      self.augment.observe(scores.real)
    loss, penalty = self.loss.discriminator(scores.real, scores.fake), total(self.penalties, scores)
    return (loss + tf.cast(penalty, loss.dtype), penalty,
            self.loss.accuracy(scores.real, scores.fake), sample_variance.moments(images, fakes))

  def _generator_loss(self, z: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    fakes = self.generator(z, labels, training=True)
    seen = self.augment(fakes) if self.augment else fakes
    scores, logits = scores_and_logits(self.discriminator(seen, labels, training=True))
    loss = self.loss.generator(scores)
    for weight, term in [
        (self.generator_orthogonality, lambda: orthogonality.products_of_filters(self.generator)),
        (self.generator_classification, lambda: classification.cross_entropy(logits, labels))]:
      if weight != 0.0:
        loss += tf.cast(replicator.scheduled(weight) * term(), loss.dtype)
    return loss

  def _encoder_loss(self, z: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    latents = self.encoder(self.generator(z, labels, training=True), training=True)
    return tf.reduce_mean(tf.math.squared_difference(latents, z))


@gin.configurable
def train_gan(workdir: str, data: Callable[[], ImageSource] = Digits) -> None:
  """Trains a GAN on `data`, or resumes the run in `workdir`."""
  gans.train(GAN, data, workdir)


if __name__ == "__main__":
  app.run(train_gan)
