"""SN-GAN with an encoder: three networks trained in one replica step.

    python -m experiments.sngan --gin_file=configs/sngan_digits.gin

Miyato et al. 2018 (arXiv:1802.05957); with classes the projection discriminator of Miyato and
Koyama 2018 (arXiv:1802.05637). The encoder either regresses the codes of generated images, or it
is trained adversarially on (image, code) pairs, as in BiGAN (Donahue et al. 2017,
arXiv:1605.09782).
"""

import os
from collections.abc import Callable
from typing import ClassVar

from replicator.console import start

start.import_tensorflow(__name__)

import gin
import keras
import tensorflow as tf

import replicator
from models.gan.evaluation import sample_variance
from models.gan.evaluation.sample_evaluator import SampleEvaluator
from models.gan.latents.distributions import normal_latents
from models.gan.losses import adversarial
from models.gan.networks.sngan import Encoder, SNGANDiscriminator, SNGANGenerator
from models.vision import sources  # noqa: F401  (for gin)
from models.vision.builtin.digits import Digits
from models.vision.images.image_source import ImageSource, to_unit_range
from replicator import app, random


@gin.configurable(denylist=["image_shape", "num_classes"])
class SNGAN(tf.Module):
  """One training step: discriminator updates, one generator update, one encoder update.

  The three optimizers are made in the gin scopes `discriminator`, `generator` and `encoder`.

  Args:
    image_shape: (height, width, channels) of the data.
    num_classes: number of classes of the data, used if `conditional`.
    optimizer: makes a Keras optimizer.
    loss: makes the losses of discriminator and generator, one of `models.gan.losses.adversarial`.
    latent_dim: length of a code z ~ N(0, 1).
    conditional: whether generator and discriminator receive labels.
    discriminator_updates: how many for each generator update; each takes its own part of the batch.
    generator_batch_ratio: codes in a generator update for each image in a discriminator update.
    bigan: True trains the encoder against a discriminator of (image, code) pairs; False trains
      it to regress the codes of generated images.

  Raises:
    UsageError: a number is below 1, or the loss compares samples with images.
  """

  may_collapse: ClassVar = {"mode collapse": ("sample_variance", "data_variance")}
  """The guard warns when the samples vary far less than the images; see `Guard.collapse`."""

  def __init__(self, image_shape: tuple[int, int, int], num_classes: int,
               optimizer: Callable[[], keras.optimizers.Optimizer] = gin.REQUIRED,
               loss: Callable[[], adversarial.AdversarialLoss] = adversarial.hinge,
               latent_dim: int = 128, conditional: bool = False, discriminator_updates: int = 5,
               generator_batch_ratio: int = 2, bigan: bool = False):
    super().__init__()
    counts = {"latent_dim": latent_dim, "discriminator_updates": discriminator_updates,
              "generator_batch_ratio": generator_batch_ratio}
    for name, value in counts.items():
      if value < 1:
        raise replicator.UsageError(f"SNGAN.{name} = {value}: must be at least 1")
    self.loss = loss()
    adversarial.refuse_relative("SNGAN", self.loss)
    resolution, _, channels = image_shape
    self.num_classes = num_classes if conditional else 0
    self.latents = normal_latents
    self.latent_dim = latent_dim
    self.discriminator_updates = discriminator_updates
    self.generator_batch_ratio = generator_batch_ratio
    self.bigan = bigan
    self.generator = SNGANGenerator(resolution, channels, latent_dim, num_classes=self.num_classes)
    self.discriminator = SNGANDiscriminator(resolution, channels, num_classes=self.num_classes,
                                       code_dim=latent_dim if bigan else 0)
    self.encoder = Encoder(resolution, channels, latent_dim)
    self.optimizers = replicator.wrap_optimizers(
        optimizer, discriminator=self.discriminator, generator=self.generator, encoder=self.encoder)

  def __call__(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Takes one step: `{"image": uint8 [n, h, w, c], "label": int32 [n]}` -> scalars, float [].

    These are the three losses, and for the last discriminator update: `d_accuracy`, the fraction of
    images and samples that it classifies correctly; `sample_variance` and `data_variance`, the
    variances over the global batch of samples and of images, each a mean over pixels.
    """
    for part in replicator.split(batch, self.discriminator_updates):
      images = to_unit_range(part["image"], keras.config.floatx())
      discriminator_loss, accuracy, moments = self._update_discriminator(images, part["label"])
    [generator_loss] = self._update_generator(self.generator_batch_ratio * images.shape[0])
    [encoder_loss] = self._update_encoder(images, part["label"])
    return {"discriminator": discriminator_loss, "generator": generator_loss,
            "encoder": encoder_loss, "d_accuracy": accuracy, **sample_variance.variances(moments)}

  @tf.function(autograph=False, reduce_retracing=True)  # Its batches have three sizes.
  def generate(self, z: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Samples of the averaged generator: `[n, latent_dim], int32 [n] -> [n, h, w, c]`."""
    with self.optimizers["generator"].averaged_weights():
      return self.generator(z, labels, training=False)

  @tf.function(autograph=False)
  def reconstruct(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Images decoded from their codes: uint8 `[n, h, w, c]`, int32 `[n]` -> `[n, h, w, c]`."""
    images = to_unit_range(images, keras.config.floatx())
    return self.generate(self.encoder(images, training=False), labels)

  def _update_discriminator(self, images: tf.Tensor, labels: tf.Tensor) -> list:
    """Loss [], accuracy [], and the `sample_variance.moments`."""
    z, fake_labels = self._sample(images.shape[0])

    def loss(images, labels, z, fake_labels):
      fakes = self.generator(z, fake_labels, training=True)
      codes = self.encoder(images, training=True) if self.bigan else None
      # Real and fake images in one call, so that both meet the same singular vectors.
      scores = self._score(tf.concat([images, fakes], 0), tf.concat([labels, fake_labels], 0),
                           tf.concat([codes, z], 0) if self.bigan else None)
      real_scores, fake_scores = tf.split(scores, 2)
      is_correct = tf.cast(tf.concat([real_scores > 0, fake_scores < 0], 0), images.dtype)
      return [self.loss.discriminator(real_scores, fake_scores), tf.reduce_mean(is_correct),
              sample_variance.moments(images, fakes)]

    return self.optimizers["discriminator"].minimize(loss, images, labels, z, fake_labels)

  def _update_generator(self, size: int) -> list[tf.Tensor]:
    def loss(z, labels):
      return [self.loss.generator(
          self._score(self.generator(z, labels, training=True), labels, z))]

    return self.optimizers["generator"].minimize(loss, *self._sample(size))

  def _update_encoder(self, images: tf.Tensor, labels: tf.Tensor) -> list[tf.Tensor]:
    def adversarial_loss(images, labels):  # Real pairs should look generated.
      return [tf.reduce_mean(self._score(images, labels, self.encoder(images, training=True)))]

    def regression_loss(z, labels):
      fakes = self.generator(z, labels, training=True)
      return [tf.reduce_mean(tf.math.squared_difference(self.encoder(fakes, training=True), z))]

    if self.bigan:
      return self.optimizers["encoder"].minimize(adversarial_loss, images, labels)
    return self.optimizers["encoder"].minimize(regression_loss, *self._sample(images.shape[0]))

  def _sample(self, size: int) -> tuple[tf.Tensor, tf.Tensor]:
    z = self.latents("z", [size, self.latent_dim])
    if not self.num_classes:
      return z, tf.zeros([size], tf.int32)
    return z, random.uniform("label", [size], 0, self.num_classes, tf.int32)

  def _score(self, images, labels, codes):
    return self.discriminator(images, labels, codes if self.bigan else None, training=True)


@gin.configurable
def sngan(workdir: str, data: Callable[[], ImageSource] = Digits) -> None:
  """Trains SN-GAN on `data`, or resumes the run in `workdir`."""
  source = data()
  replicator.train(lambda: SNGAN(source.image_shape, source.num_classes), source,
                   SampleEvaluator(source, os.path.join(workdir, "classifier")), workdir=workdir)


if __name__ == "__main__":
  app.run(sngan)
