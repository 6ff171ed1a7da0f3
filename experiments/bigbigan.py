"""BigBiGAN: a BigGAN without labels and a stochastic encoder, trained in one replica step.

    python -m experiments.bigbigan --gin_file=configs/bigbigan_digits.gin

Donahue and Simonyan 2019 (arXiv:1907.02544), equations 3 and 4: each loss is a sum over three
scores, of a pair, of its image and of its code. The authors' public notebook takes the mean of the
three, a third of this. The evaluation trains linear classifiers on what the encoder says of images,
and tests them on images that nothing was trained on.
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
from models.vision.images.image_source import ImageSource, hold_out, read, to_unit_range
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
    discriminator: makes the discriminator of pairs, from the same.
    encoder: makes the encoder, from the same.
    latent_dim: length of a code z ~ N(0, 1).
    discriminator_updates: how many for each generator update; each takes its own part of the batch.

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
    self.discriminator_updates = discriminator_updates
    self.generator = generator(resolution, channels, latent_dim)
    self.discriminator = discriminator(resolution, channels, latent_dim)
    self.encoder = encoder(resolution, channels, latent_dim)
    self.optimizers = replicator.wrap_optimizers(
        optimizer, discriminator=self.discriminator, generator=self.generator, encoder=self.encoder)

  def __call__(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Takes one step: `{"image": uint8 [n, h, w, c], "label": int32 [n]}` -> scalars, float [].

    The labels are not used. The scalars are the three losses, and for the last discriminator
    update: `d_accuracy`, the fraction of pairs whose joint score is right; `code_scale`, the mean
    standard deviation of the encoder's codes; and those of `sample_variance.variances`.
    """
    for part in replicator.split(batch["image"], self.discriminator_updates):
      images = to_unit_range(part, keras.config.floatx())
      shape = [images.shape[0], self.latent_dim]
      discriminator_loss, accuracy, scale, moments = self.optimizers["discriminator"].minimize(
          self._discriminator_loss, images, self.latents("z", shape))
    generator_loss = self.optimizers["generator"].minimize(
        self._generator_loss, self.latents("z", shape))
    encoder_loss = self.optimizers["encoder"].minimize(self._encoder_loss, images)
    return {"discriminator": discriminator_loss, "generator": generator_loss,
            "encoder": encoder_loss, "d_accuracy": accuracy, "code_scale": scale,
            **sample_variance.variances(moments)}

  def _discriminator_loss(self, images: tf.Tensor, z: tf.Tensor) -> tuple:
    codes = self.encoder(images, training=True)
    fakes = self.generator(z, training=True)
    # Real and generated pairs in one call, so that both meet the same singular vectors.
    scores = self.discriminator(tf.concat([images, fakes], 0), tf.concat([codes.draw(), z], 0),
                                training=True)
    pairs = PairScores(*(tf.split(score, 2) for score in scores))  # Real and generated ones.
    hinge = adversarial.hinge().discriminator
    return (tf.add_n([hinge(real, generated) for real, generated in pairs]),
            adversarial.accuracy(*pairs.joint), tf.reduce_mean(codes.scale),
            sample_variance.moments(images, fakes))

  def _generator_loss(self, z: tf.Tensor) -> tf.Tensor:
    fakes = self.generator(z, training=True)
    # The score of the code alone gives the generator no gradient.
    return -tf.reduce_mean(tf.add_n(self.discriminator(fakes, z, training=True)))

  def _encoder_loss(self, images: tf.Tensor) -> tf.Tensor:
    codes = self.encoder(images, training=True).draw()
    # Real pairs should look generated. The score of the image alone gives no gradient.
    return tf.reduce_mean(tf.add_n(self.discriminator(images, codes, training=True)))

  @replicator.any_batch_size
  def encode(self, images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Means of codes and features: uint8 `[n, h, w, c] -> [n, latent_dim], [n, num_features]`."""
    images = to_unit_range(images, keras.config.floatx())
    with self.optimizers["encoder"].averaged_weights():
      return self.encoder(images).mean, self.encoder.features(images)

  def reconstruct(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Images decoded from the means of their codes: uint8 `[n, h, w, c] -> [n, h, w, c]`."""
    return self.generate(self.encode(images)[0], labels)


@gin.configurable(denylist=["evaluate_samples", "train_on", "held_out"])
class BigBiGANEvaluator:
  """Draws samples and reconstructions, and measures samples and what the encoder has learned.

  Args:
    evaluate_samples: draws and measures samples and reconstructions.
    train_on: the images that the networks are trained on.
    held_out: all others.
    probe_images: how many images the linear classifiers are trained on at most, and tested on.
  """

  def __init__(self, evaluate_samples: SampleEvaluator, train_on: ImageSource,
               held_out: ImageSource, probe_images: int = 5_000):
    self._evaluate_samples = evaluate_samples
    self.on_all_workers = evaluate_samples.on_all_workers
    self._parts = train_on, held_out
    self._probe_images = probe_images

  def __call__(self, gan: BigBiGAN) -> replicator.Evaluation:
    """The picture and numbers of `evaluate_samples`, and two accuracies on held-out images.

    `probe_accuracy` is that of a linear classifier of codes, and `feature_probe_accuracy` of one of
    the encoder's features. Images of one class have none.
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
    """Labels [n], codes and features of the first images of a part."""
    images, labels = read(part, np.arange(min(part.size, self._probe_images)))
    encoded = [gan.encode(images[i:i + batch_size]) for i in range(0, len(images), batch_size)]
    return [labels, *(np.concatenate(arrays) for arrays in zip(*encoded, strict=True))]


@gin.configurable
def bigbigan(workdir: str, data: Callable[[], ImageSource] = Digits,
             held_out: float = 0.2) -> None:
  """Trains BigBiGAN on `data`, or resumes the run in `workdir`.

  Args:
    workdir: the folder of the run.
    data: makes the source of the images.
    held_out: the share of images that nothing is trained on, which test the encoder.
  """
  source = data()
  gans.check_square(source)
  train_on, others = hold_out(source, held_out)
  # Samples are compared with all images, as other experiments compare theirs.
  evaluate_samples = SampleEvaluator(source, os.path.join(workdir, "classifier"),
                                     reconstructed=others)
  evaluator = BigBiGANEvaluator(evaluate_samples, train_on, others)
  replicator.train(lambda: BigBiGAN(source.image_shape), train_on, evaluator, workdir=workdir)


if __name__ == "__main__":
  app.run(bigbigan)
