"""R3GAN: a relativistic loss with two gradient penalties, and networks without normalization.

    python -m experiments.r3gan --gin_file=configs/r3gan_stacked_digits.gin

Huang et al. 2024 (arXiv:2501.05441). The updates of both networks compare each sample with an
image of the same label, so each update takes one half of the batch.
"""

from collections.abc import Callable, Sequence

import replicator
from models.gan import gans
from models.gan.augmentation import ada, diffaugment  # noqa: F401  (for gin)
from models.gan.evaluation import sample_variance
from models.gan.latents.distributions import normal_latents
from models.gan.losses.adversarial import relativistic
from models.gan.networks import biggan, biggan_deep, dcgan, sngan  # noqa: F401  (for gin)
from models.gan.networks.protocols import DiscriminatorNetwork, GANAugmentation, GeneratorNetwork
from models.gan.networks.r3gan import R3GANDiscriminator, R3GANGenerator
from models.gan.penalties.gradients import r1, r2
from models.gan.penalties.penalty import total
from models.gan.penalties.scores import Scores
from models.vision.builtin.digits import Digits
from models.vision.images.classes import NO_CLASSES, Classes
from models.vision.images.image_source import ImageSource, to_unit_range
from replicator import app
from replicator.errors import at_least_one

import gin
import keras
import tensorflow as tf


@gin.configurable(denylist=["image_shape", "classes"])
class R3GAN(tf.Module):
  """One training step: a discriminator update and a generator update.

  The two optimizers are made in the gin scopes `discriminator` and `generator`. The penalties are
  `r1` and `r2`, with the weights `r1.gamma` and `r2.gamma`.

  Args:
    image_shape: (height, width, channels) of the data.
    classes: classes of the data, used if `conditional`.
    optimizer: makes a Keras optimizer.
    generator: makes the generator from resolution, channels, latent_dim and num_classes.
    discriminator: makes the discriminator from resolution, channels and num_classes.
    augment: makes the augmentation of all images and samples that the discriminator sees, such as
      `@ADA`; or None.
    latents: draws latents, one of `models.gan.latents.distributions`.
    latent_dim: length of a latent.
    conditional: whether generator and discriminator receive labels.

  Raises:
    UsageError: `latent_dim` is below 1.
  """

  generate = gans.generate
  may_collapse = sample_variance.COLLAPSE

  def __init__(self, image_shape: tuple[int, int, int], classes: Classes,
               optimizer: Callable[[], keras.optimizers.Optimizer] = gin.REQUIRED,
               generator: Callable[..., GeneratorNetwork] = R3GANGenerator,
               discriminator: Callable[..., DiscriminatorNetwork] = R3GANDiscriminator,
               augment: Callable[[], GANAugmentation] | None = None,
               latents: Callable[[str, Sequence[int]], tf.Tensor] = normal_latents,
               latent_dim: int = 64, conditional: bool = False):
    super().__init__()
    at_least_one("R3GAN", latent_dim=latent_dim)
    self.batches = 2  # One for the discriminator, one for the generator.
    self.classes = classes if conditional else NO_CLASSES
    self.num_classes = len(self.classes)
    shape = {"resolution": image_shape[0], "channels": image_shape[2],
             "num_classes": self.num_classes}
    self.latents = latents
    self.latent_dim = latent_dim
    self.penalties = [r1(), r2()]
    self.augment = augment() if augment else None
    self.generator = generator(**shape, latent_dim=latent_dim)
    self.discriminator = discriminator(**shape)
    self.optimizers = replicator.wrap_optimizers(
        optimizer, discriminator=self.discriminator, generator=self.generator)

  def __call__(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Takes one step: `{"image": uint8 [n, h, w, c], "label": int32 [n]}` -> scalars, float [].

    The scalars are `loss/generator`; `loss/discriminator`, including penalties; `penalty`, their
    sum; `d_accuracy`, the fraction of pairs whose image has the higher score; and those of
    `sample_variance.variances`. With `ADA`, `augmentation` is its p.
    """
    for_discriminator, for_generator = map(self._pairs, replicator.split(batch, self.batches))
    discriminator_loss, penalty, accuracy, moments = self.optimizers["discriminator"].minimize(
        self._discriminator_loss, *for_discriminator)
    generator_loss = self.optimizers["generator"].minimize(self._generator_loss, *for_generator)
    return {"loss/discriminator": discriminator_loss, "loss/generator": generator_loss,
            "penalty": penalty, "d_accuracy": accuracy, **sample_variance.variances(moments),
            **ada.logged(self.augment)}

  def _pairs(self, part: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns images, their labels, and one latent for each."""
    images = to_unit_range(part["image"], keras.config.floatx())
    return images, part["label"], self.latents("z", [images.shape[0], self.latent_dim])

  def _discriminator_loss(self, images: tf.Tensor, labels: tf.Tensor, z: tf.Tensor) -> tuple:
    fakes = self.generator(z, labels, training=True)
    scores = Scores(self.discriminator, images, fakes, labels, labels, self.augment)
    if self.augment:
      self.augment.observe(scores.real)
    loss, penalty = relativistic(scores.real, scores.fake), total(self.penalties, scores)
    accuracy = tf.reduce_mean(tf.cast(scores.real > scores.fake, images.dtype))
    return (loss + tf.cast(penalty, loss.dtype), penalty, accuracy,
            sample_variance.moments(images, fakes))

  def _generator_loss(self, images: tf.Tensor, labels: tf.Tensor, z: tf.Tensor) -> tf.Tensor:
    fakes = self.generator(z, labels, training=True)
    scores = Scores(self.discriminator, images, fakes, labels, labels, self.augment)
    return relativistic(scores.fake, scores.real)


@gin.configurable
def train_r3gan(workdir: str, data: Callable[[], ImageSource] = Digits) -> None:
  """Trains R3GAN on `data`, or resumes the run in `workdir`."""
  gans.train(R3GAN, data, workdir)


if __name__ == "__main__":
  app.run(train_r3gan)
