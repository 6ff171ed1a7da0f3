"""LOGAN: a GAN that optimizes its latents before each update of its networks.

    python -m experiments.logan --gin_file=configs/logan_digits.gin

Wu et al. 2019 (arXiv:1912.00953), algorithm 1. With `LatentOptimization.steps = 0` it is the same
GAN without latent optimization. The gin file chooses networks, loss and latent distribution.
"""

from collections.abc import Callable, Sequence

import replicator
from models.gan import gans
from models.gan.evaluation import sample_variance
from models.gan.latents.distributions import draw, is_normal, uniform_latents
from models.gan.latents.optimization import LatentOptimization
from models.gan.losses import adversarial
from models.gan.networks import biggan_deep, dcgan, sngan  # noqa: F401  (for gin)
from models.gan.networks.protocols import DiscriminatorNetwork, GeneratorNetwork
from models.gan.penalties.scores import Scores, check_second_derivatives
from models.vision.builtin.digits import Digits
from models.vision.images.classes import NO_CLASSES, Classes
from models.vision.images.image_source import ImageSource, to_unit_range
from replicator import app
from replicator.errors import at_least_one

import gin
import keras
import tensorflow as tf


@gin.configurable(denylist=["image_shape", "classes"])
class LOGAN(tf.Module):
  """One training step: discriminator updates, one generator update; each optimizes its latents.

  The optimizers are made in the gin scopes `discriminator` and `generator`. `generate` does not
  optimize its latents.

  Args:
    image_shape: (height, width, channels) of the data.
    classes: classes of the data, used if `conditional`; sample labels follow their frequencies.
    optimizer: makes a Keras optimizer.
    generator: makes the generator, such as `@BigGANDeepGenerator`, from resolution, channels,
      latent_dim and num_classes.
    discriminator: makes the discriminator from resolution, channels and num_classes.
    loss: makes the losses of discriminator and generator, one of `models.gan.losses.adversarial`.
    latents: draws latents in [-1, 1], to which optimized ones are clipped: `uniform_latents`.
    latent_dim: length of a latent.
    optimization: makes the latent optimizer.
    conditional: whether generator and discriminator receive labels.
    discriminator_updates: discriminator updates per generator update, each on a separate batch.

  Raises:
    UsageError: a number is below 1, latents are normal, or a network has a layer with wrong second
      derivatives, which latent optimization needs.
  """

  generate = gans.generate
  may_collapse = sample_variance.COLLAPSE

  def __init__(self, image_shape: tuple[int, int, int], classes: Classes,
               optimizer: Callable[[], keras.optimizers.Optimizer] = gin.REQUIRED,
               generator: Callable[..., GeneratorNetwork] = gin.REQUIRED,
               discriminator: Callable[..., DiscriminatorNetwork] = gin.REQUIRED,
               loss: Callable[[], adversarial.AdversarialLoss] = adversarial.hinge,
               latents: Callable[[str, Sequence[int]], tf.Tensor] = uniform_latents,
               latent_dim: int = 256,
               optimization: Callable[[], LatentOptimization] = LatentOptimization,
               conditional: bool = False, discriminator_updates: int = 2):
    super().__init__()
    at_least_one("LOGAN", latent_dim=latent_dim, discriminator_updates=discriminator_updates)
    if is_normal(latents):
      raise replicator.UsageError(
          f"LOGAN.latents = @{latents.__name__}: latents that move are clipped to [-1, 1], so they "
          "must be uniform there; set LOGAN.latents = @uniform_latents")
    self.loss = loss()
    self.classes = classes if conditional else NO_CLASSES
    self.num_classes = len(self.classes)
    shape = {"resolution": image_shape[0], "channels": image_shape[2],
             "num_classes": self.num_classes}
    self.latents = latents
    self.latent_dim = latent_dim
    self.optimization = optimization()
    self.batches = discriminator_updates
    self.generator = generator(**shape, latent_dim=latent_dim)
    self.discriminator = discriminator(**shape)
    moves = getattr(self.optimization, "steps", 0)
    for network in (self.generator, self.discriminator) if moves else ():
      check_second_derivatives(network, "LatentOptimization")
    self.optimizers = replicator.wrap_optimizers(
        optimizer, discriminator=self.discriminator, generator=self.generator)

  def __call__(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Takes one step: `{"image": uint8 [n, h, w, c], "label": int32 [n]}` -> scalars, float [].

    The scalars are `loss/discriminator` and `loss/generator`, including the cost of moving latents.
    Those of the last discriminator update are `latent_cost`, that cost alone; `d_accuracy`, the
    fraction of images and samples classified correctly; and the scalars of
    `sample_variance.variances`.
    """
    for part in replicator.split(batch, self.batches):
      images = to_unit_range(part["image"], keras.config.floatx())
      size = images.shape[0]
      discriminator_loss, cost, accuracy, moments = self.optimizers["discriminator"].minimize(
          self._discriminator_loss, images, part["label"], *draw(self, size))
    generator_loss = self.optimizers["generator"].minimize(
        self._generator_loss, *draw(self, size))
    return {"loss/discriminator": discriminator_loss, "loss/generator": generator_loss,
            "latent_cost": cost, "d_accuracy": accuracy, **sample_variance.variances(moments)}

  def _discriminator_loss(self, images: tf.Tensor, labels: tf.Tensor, z: tf.Tensor,
                          fake_labels: tf.Tensor) -> tuple:
    moved, cost = self._optimized(z, fake_labels)
    fakes = self.generator(moved, fake_labels, training=True)
    scores = Scores(self.discriminator, images, fakes, labels, fake_labels)
    return (self.loss.discriminator(scores.real, scores.fake) + cost, cost,
            self.loss.accuracy(scores.real, scores.fake), sample_variance.moments(images, fakes))

  def _generator_loss(self, z: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    moved, cost = self._optimized(z, labels)
    return self.loss.generator(self._score(moved, labels)) + cost

  def _optimized(self, z: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the optimized latents, [n, latent_dim], and their cost []."""
    return self.optimization(lambda z: self._score(z, labels), z)

  def _score(self, z: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    return self.discriminator(self.generator(z, labels, training=True), labels, training=True)


@gin.configurable
def train_logan(workdir: str, data: Callable[[], ImageSource] = Digits) -> None:
  """Trains LOGAN on `data`, or resumes the run in `workdir`."""
  gans.train(LOGAN, data, workdir)


if __name__ == "__main__":
  app.run(train_logan)
