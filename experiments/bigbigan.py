"""BigBiGAN: an unconditional BigGAN and a stochastic encoder, trained together.

    python -m experiments.bigbigan --gin_file=configs/bigbigan_digits.gin

Donahue and Simonyan 2019 (arXiv:1907.02544), equations 3 and 4: each loss is the sum of three
scores: of a pair, of its image and of its latent. The authors' public notebook averages the
three, so its loss is a third of this one. The evaluation trains linear classifiers on the encoder's
latents and features, and tests them on held-out images.
"""

import dataclasses
import os
from collections.abc import Callable

import replicator
from models.gan import gans
from models.gan.evaluation import sample_variance
from models.gan.evaluation.sample_evaluator import SampleEvaluator
from models.gan.latents.distributions import normal_latents
from models.gan.losses import adversarial
from models.gan.networks import biggan_deep  # noqa: F401  (for gin)
from models.gan.networks.bigbigan import BigBiGANDiscriminator, BigBiGANEncoder, PairScores
from models.gan.networks.biggan import BigGANGenerator
from models.vision import sources  # noqa: F401  (for gin)
from models.vision.builtin.digits import Digits
from models.vision.classification.linear_probe import linear_probe
from models.vision.images.image_source import (
  ImageSource,
  read,
  to_unit_range,
  train_validation_split,
)
from replicator import app
from replicator.errors import at_least_one

import gin
import keras
import numpy as np
import tensorflow as tf


@gin.configurable(denylist=["image_shape"])
class BigBiGAN(tf.Module):
  """One training step: discriminator updates, one generator update, one encoder update.

  The three optimizers are made in the gin scopes `discriminator`, `generator` and `encoder`.

  Args:
    image_shape: (height, width, channels) of the data.
    optimizer: makes a Keras optimizer.
    generator: makes the generator, from resolution, channels and latent_dim.
    discriminator: makes the discriminator of pairs, from the same arguments.
    encoder: makes the encoder, from the same arguments.
    latent_dim: length of a latent z ~ N(0, 1).
    discriminator_updates: discriminator updates per generator update, each on a separate batch.

  Raises:
    UsageError: a number is below 1.
  """

  generate = gans.generate
  may_collapse = sample_variance.COLLAPSE

  def __init__(self, image_shape: tuple[int, int, int],
               optimizer: Callable[[], keras.optimizers.Optimizer] = gin.REQUIRED,
               generator: Callable[[int, int, int], keras.Model] = BigGANGenerator,
               discriminator: Callable[[int, int, int], keras.Model] = BigBiGANDiscriminator,
               encoder: Callable[[int, int, int], keras.Model] = BigBiGANEncoder,
               latent_dim: int = 120, discriminator_updates: int = 2):
    super().__init__()
    at_least_one("BigBiGAN", latent_dim=latent_dim, discriminator_updates=discriminator_updates)
    resolution, _, channels = image_shape
    self.latents = normal_latents
    self.latent_dim = latent_dim
    self.num_classes = 0
    self.batches = discriminator_updates
    self.generator = generator(resolution, channels, latent_dim)
    self.discriminator = discriminator(resolution, channels, latent_dim)
    self.encoder = encoder(resolution, channels, latent_dim)
    self.optimizers = replicator.wrap_optimizers(
        optimizer, discriminator=self.discriminator, generator=self.generator, encoder=self.encoder)

  def __call__(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Takes one step: `{"image": uint8 [n, h, w, c], "label": int32 [n]}` -> scalars, float [].

    The labels are not used. The scalars are `loss/discriminator`, `loss/generator` and
    `loss/encoder`. Those of the last discriminator update are `d_accuracy`, the fraction of pairs
    whose joint score is correct; `latent_std`, the mean standard deviation of the encoder's
    latents; and the scalars of `sample_variance.variances`.
    """
    for part in replicator.split(batch["image"], self.batches):
      images = to_unit_range(part, keras.config.floatx())
      shape = [images.shape[0], self.latent_dim]
      discriminator_loss, accuracy, scale, moments = self.optimizers["discriminator"].minimize(
          self._discriminator_loss, images, self.latents("z", shape))
    generator_loss = self.optimizers["generator"].minimize(
        self._generator_loss, self.latents("z", shape))
    encoder_loss = self.optimizers["encoder"].minimize(self._encoder_loss, images)
    return {"loss/discriminator": discriminator_loss, "loss/generator": generator_loss,
            "loss/encoder": encoder_loss, "d_accuracy": accuracy, "latent_std": scale,
            **sample_variance.variances(moments)}

  def _discriminator_loss(self, images: tf.Tensor, z: tf.Tensor) -> tuple:
    latents = self.encoder(images, training=True)
    fakes = self.generator(z, training=True)
    # Real and generated pairs in one call, so that both use the same singular vectors.
    scores = self.discriminator(tf.concat([images, fakes], 0), tf.concat([latents.draw(), z], 0),
                                training=True)
    pairs = PairScores(*(tf.split(score, 2) for score in scores))  # Real and generated.
    hinge = adversarial.hinge().discriminator
    return (tf.add_n([hinge(real, generated) for real, generated in pairs]),
            adversarial.accuracy(*pairs.joint), tf.reduce_mean(latents.scale),
            sample_variance.moments(images, fakes))

  def _generator_loss(self, z: tf.Tensor) -> tf.Tensor:
    fakes = self.generator(z, training=True)
    # The latent's own score does not depend on the generator.
    return -tf.reduce_mean(tf.add_n(self.discriminator(fakes, z, training=True)))

  def _encoder_loss(self, images: tf.Tensor) -> tf.Tensor:
    latents = self.encoder(images, training=True).draw()
    # Real pairs should look generated. The image's own score does not depend on the encoder.
    return tf.reduce_mean(tf.add_n(self.discriminator(images, latents, training=True)))

  @replicator.any_batch_size
  def encode(self, images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns latent means and features: uint8 `[n, h, w, c] -> [n, latent_dim], [n, k]`."""
    images = to_unit_range(images, keras.config.floatx())
    with self.optimizers["encoder"].averaged_weights():
      return self.encoder(images).mean, self.encoder.features(images)

  def reconstruct(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Decodes images from their latent means: uint8 `[n, h, w, c] -> [n, h, w, c]`."""
    return self.generate(self.encode(images)[0], labels)


@gin.configurable(denylist=["evaluate_samples", "train_on", "validation"])
class BigBiGANEvaluator:
  """Evaluator of samples, reconstructions and the encoder's features.

  Args:
    evaluate_samples: draws and measures samples and reconstructions.
    train_on: the training images.
    validation: the held-out images, on which the encoder is tested.
    probe_images: maximum number of images for training the linear classifiers, and for testing.
  """

  def __init__(self, evaluate_samples: SampleEvaluator, train_on: ImageSource,
               validation: ImageSource, probe_images: int = 5_000):
    self._evaluate_samples = evaluate_samples
    self.on_all_workers = evaluate_samples.on_all_workers
    self._parts = train_on, validation
    self._probe_images = probe_images

  def __call__(self, gan: BigBiGAN) -> replicator.Evaluation:
    """Returns the results of `evaluate_samples`, and two accuracies on held-out images.

    `probe_accuracy` is that of a linear classifier on latents, and `feature_probe_accuracy` that of
    one on the encoder's features. They are left out if all images have the same class.
    """
    of_samples = self._evaluate_samples(gan)
    (train_labels, *train_inputs), (labels, *inputs) = (
        self._encoded(gan, part) for part in self._parts)
    if len(np.unique(train_labels)) < 2:
      return of_samples
    code_accuracy, feature_accuracy = (
        linear_probe(train_input, train_labels, held_out_input, labels)
        for train_input, held_out_input in zip(train_inputs, inputs, strict=True))
    return dataclasses.replace(of_samples, scalars={
        **of_samples.scalars, "probe_accuracy": code_accuracy,
        "feature_probe_accuracy": feature_accuracy})

  def _encoded(self, gan: BigBiGAN, part: ImageSource, batch_size: int = 250) -> list[np.ndarray]:
    """Returns labels [n], latents and features of the first images of a part."""
    images, labels = read(part, np.arange(min(part.size, self._probe_images)))
    encoded = [gan.encode(images[i:i + batch_size]) for i in range(0, len(images), batch_size)]
    return [labels, *(np.concatenate(arrays) for arrays in zip(*encoded, strict=True))]


@gin.configurable
def train_bigbigan(workdir: str, data: Callable[[], ImageSource] = Digits,
                   validation_split: float = 0.2) -> None:
  """Trains BigBiGAN on `data`, or resumes the run in `workdir`.

  Args:
    workdir: the folder of the run.
    data: makes the source of the images.
    validation_split: fraction of the images held out to test the encoder.
  """
  source = data()
  gans.check_square(source)
  train_on, others = train_validation_split(source, validation_split)
  # Samples are compared with all images, as in the other experiments.
  evaluate_samples = SampleEvaluator(source, os.path.join(workdir, "classifier"),
                                     reconstructed=others)
  evaluator = BigBiGANEvaluator(evaluate_samples, train_on, others)
  replicator.train(lambda: BigBiGAN(source.image_shape), train_on, evaluator, workdir=workdir)


if __name__ == "__main__":
  app.run(train_bigbigan)
