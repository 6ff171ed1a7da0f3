"""A GAN made of parts: networks, loss, penalties and codes are chosen in the gin file.

    python -m experiments.gan --gin_file=configs/r3gan_stacked_digits.gin

R3GAN, WGAN-GP, BigGAN and DCGAN are configurations of it.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from replicator.console import start

start.import_tensorflow(__name__)

import gin
import keras
import tensorflow as tf

import replicator
from models.gan.augmentation import diffaugment  # noqa: F401  (for gin)
from models.gan.augmentation.ada import ADA
from models.gan.evaluation import sample_variance
from models.gan.evaluation.sample_evaluator import SampleEvaluator
from models.gan.latents.distributions import normal_latents
from models.gan.losses import adversarial
from models.gan.networks import (  # noqa: F401  (for gin)
  acgan,
  biggan,
  biggan_deep,
  dcgan,
  r3gan,
  sngan,
)
from models.gan.penalties import classification, consistency, lecam, orthogonality  # noqa: F401  (for gin)
from models.gan.penalties import gradients as gradient_penalties  # noqa: F401  (for gin)
from models.gan.penalties.penalty import Penalty
from models.gan.penalties.scores import Scores, scores_and_logits
from models.vision import sources  # noqa: F401  (for gin)
from models.vision.builtin.digits import Digits
from models.vision.images.image_source import ImageSource, to_unit_range
from replicator import app, random
from replicator.optimizers.schedules import Number


@gin.configurable(denylist=["image_shape", "num_classes"])
class GAN(tf.Module):
  """One training step: discriminator updates, one generator update, one update of an encoder.

  The optimizers are made in the gin scopes `discriminator`, `generator` and `encoder`. Each update
  of the discriminator takes its own part of the batch; so does the generator's if the loss is
  relative, as `@relativistic` is.

  Args:
    image_shape: (height, width, channels) of the data.
    num_classes: number of classes of the data, used if `conditional`.
    optimizer: makes a Keras optimizer.
    generator: makes the generator, such as `@R3GANGenerator`, from resolution, channels,
      latent_dim and num_classes.
    discriminator: makes the discriminator from resolution, channels and num_classes.
    encoder: makes a network that regresses the codes of samples, such as `@Encoder`, from
      resolution, channels and latent_dim; or None.
    loss: makes the losses of discriminator and generator, one of `models.gan.losses.adversarial`.
    penalties: terms of the discriminator's loss, such as `[@r1(), @r2()]`.
    augment: makes what images and samples pass through before the discriminator sees them, such
      as `@DiffAugment`; or None.
    latents: draws codes, one of `models.gan.latents.distributions`.
    latent_dim: length of a code.
    conditional: whether generator and discriminator receive labels.
    discriminator_updates: how many for each generator update.
    generator_batch_ratio: codes in a generator update for each image in a discriminator update.
    generator_orthogonality: the weight of `products_of_filters` of the generator in its loss,
      BigGAN's regularization.
    generator_classification: the weight of the classification loss of samples in the generator's
      loss, for `@ACGANDiscriminator`.

  Raises:
    UsageError: a number is below 1, a relative loss has a generator batch of another size, or there
      is no classifier for a classification loss.
  """

  may_collapse: ClassVar = {"mode collapse": ("sample_variance", "data_variance")}
  """The guard warns when the samples vary far less than the images; see `Guard.collapse`."""

  def __init__(self, image_shape: tuple[int, int, int], num_classes: int,
               optimizer: Callable[[], keras.optimizers.Optimizer] = gin.REQUIRED,
               generator: Callable[..., keras.Model] = gin.REQUIRED,
               discriminator: Callable[..., keras.Model] = gin.REQUIRED,
               encoder: Callable[..., keras.Model] | None = None,
               loss: Callable[[], adversarial.AdversarialLoss] = adversarial.hinge,
               penalties: Sequence[Penalty] = (),
               augment: Callable[[], Any] | None = None,
               latents: Callable[[str, Sequence[int]], tf.Tensor] = normal_latents,
               latent_dim: int = 128, conditional: bool = False, discriminator_updates: int = 1,
               generator_batch_ratio: int = 1, generator_orthogonality: Number = 0.0,
               generator_classification: Number = 0.0):
    super().__init__()
    counts = {"latent_dim": latent_dim, "discriminator_updates": discriminator_updates,
              "generator_batch_ratio": generator_batch_ratio}
    for name, value in counts.items():
      if value < 1:
        raise replicator.UsageError(f"GAN.{name} = {value}: must be at least 1")
    self.loss = loss()
    if self.loss.is_relative and generator_batch_ratio > 1:
      raise replicator.UsageError(
          f"GAN.generator_batch_ratio = {generator_batch_ratio}: the loss compares each sample "
          "with an image, so there must be as many of both; write 1")
    shape = {"resolution": image_shape[0], "channels": image_shape[2]}
    self.num_classes = num_classes if conditional else 0
    self.penalties = list(penalties)
    self.augment = augment() if augment else None
    self.latents = latents
    self.latent_dim = latent_dim
    self.discriminator_updates = discriminator_updates
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

    These are the losses, the discriminator's with its penalties, and for its last update:
    `penalty`, their sum; `d_accuracy`, the fraction of images and samples that it classifies
    correctly, or of pairs whose image has the higher score if the loss is relative;
    `sample_variance` and `data_variance`, the variances over the global batch of samples and of
    images, each a mean over pixels. With `ADA`, `augmentation` is its p.
    """
    parts = replicator.split(batch, self.discriminator_updates + self.loss.is_relative)
    for part in parts[:self.discriminator_updates]:
      discriminator_loss, penalty, accuracy, moments = self._update_discriminator(
          to_unit_range(part["image"], keras.config.floatx()), part["label"])
    generator_loss = self._update_generator(parts[-1])
    encoded = {"encoder": self._update_encoder(parts[-1]["label"])} if self.encoder else {}
    adapted = ({"augmentation": tf.convert_to_tensor(self.augment.probability())}
               if isinstance(self.augment, ADA) else {})
    return {"discriminator": discriminator_loss, "generator": generator_loss, **encoded,
            "penalty": penalty, "d_accuracy": accuracy, **sample_variance.variances(moments),
            **adapted}

  @tf.function(autograph=False, reduce_retracing=True)  # Its batches have three sizes.
  def generate(self, z: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Samples of the averaged generator: `[n, latent_dim], int32 [n] -> [n, h, w, c]`."""
    with self.optimizers["generator"].averaged_weights():
      return self.generator(z, labels, training=False)

  @tf.function(autograph=False)
  def reconstruct(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Images decoded from their codes: uint8 `[n, h, w, c]`, int32 `[n]` -> `[n, h, w, c]`."""
    if not self.encoder:
      raise replicator.UsageError("GAN.encoder = None: without an encoder nothing is reconstructed")
    images = to_unit_range(images, keras.config.floatx())
    return self.generate(self.encoder(images, training=False), labels)

  def _update_discriminator(self, images: tf.Tensor, labels: tf.Tensor) -> list:
    """Loss [], penalty [], accuracy [], and the `sample_variance.moments`."""
    z, fake_labels = self._sample(labels)

    def loss(images, labels, z, fake_labels):
      fakes = self.generator(z, fake_labels, training=True)
      scores = self._scores(images, fakes, labels, fake_labels)
      if self.augment:
        self.augment.observe(scores.real)
      adversarial = self.loss.discriminator(scores.real, scores.fake)
      penalty = tf.add_n([tf.zeros_like(adversarial), *(
          tf.cast(penalty(scores), adversarial.dtype) for penalty in self.penalties)])
      return [adversarial + penalty, penalty, self._accuracy(scores),
              sample_variance.moments(images, fakes)]

    return self.optimizers["discriminator"].minimize(loss, images, labels, z, fake_labels)

  def _update_generator(self, part: dict[str, tf.Tensor]) -> tf.Tensor:
    """The loss []; images of the part are seen only if the loss compares samples with them."""
    def loss(z, fake_labels):
      fakes = self.generator(z, fake_labels, training=True)
      seen = self.augment(fakes) if self.augment else fakes
      scores, logits = scores_and_logits(self.discriminator(seen, fake_labels, training=True))
      return [self._regularized(self.loss.generator(scores), logits, fake_labels)]

    def relative_loss(z, fake_labels, images, labels):
      fakes = self.generator(z, fake_labels, training=True)
      scores = self._scores(images, fakes, labels, fake_labels)
      return [self._regularized(self.loss.generator(scores.real, scores.fake),
                                scores.fake_logits, fake_labels)]

    labels = tf.repeat(part["label"], self.generator_batch_ratio)
    if not self.loss.is_relative:
      return self.optimizers["generator"].minimize(loss, *self._sample(labels))[0]
    images = to_unit_range(part["image"], keras.config.floatx())
    return self.optimizers["generator"].minimize(
        relative_loss, *self._sample(labels), images, labels)[0]

  def _update_encoder(self, labels: tf.Tensor) -> tf.Tensor:
    def loss(z, labels):
      codes = self.encoder(self.generator(z, labels, training=True), training=True)
      return [tf.reduce_mean(tf.math.squared_difference(codes, z))]

    return self.optimizers["encoder"].minimize(loss, *self._sample(labels))[0]

  def _regularized(self, loss: tf.Tensor, logits: tf.Tensor | None,
                   fake_labels: tf.Tensor) -> tf.Tensor:
    """The generator's loss with its other terms: its kernels', and its samples' classes'."""
    for weight, term in [
        (self.generator_orthogonality, lambda: orthogonality.products_of_filters(self.generator)),
        (self.generator_classification, lambda: classification.cross_entropy(logits, fake_labels))]:
      if weight != 0.0:
        loss += tf.cast(replicator.scheduled(weight) * term(), loss.dtype)
    return loss

  def _sample(self, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """A code and a label for each of some images, whose labels are `[n]`."""
    size = labels.shape[0]
    z = self.latents("z", [size, self.latent_dim])
    if self.loss.is_relative or not self.num_classes:  # A pair has one label.
      return z, labels
    return z, random.uniform("label", [size], 0, self.num_classes, tf.int32)

  def _scores(self, images: tf.Tensor, fakes: tf.Tensor, labels: tf.Tensor,
              fake_labels: tf.Tensor) -> Scores:
    return Scores(self.discriminator, images, tf.cast(fakes, images.dtype), labels, fake_labels,
                  self.augment)

  def _accuracy(self, scores: Scores) -> tf.Tensor:
    is_right = (scores.real > scores.fake if self.loss.is_relative
                else tf.concat([scores.real > 0, scores.fake < 0], 0))
    return tf.reduce_mean(tf.cast(is_right, keras.config.floatx()))


@gin.configurable
def gan(workdir: str, data: Callable[[], ImageSource] = Digits) -> None:
  """Trains a GAN on `data`, or resumes the run in `workdir`."""
  source = data()
  replicator.train(lambda: GAN(source.image_shape, source.num_classes), source,
                   SampleEvaluator(source, os.path.join(workdir, "classifier")), workdir=workdir)


if __name__ == "__main__":
  app.run(gan)
