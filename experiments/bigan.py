"""BiGAN: a generator and an encoder against a discriminator of (image, latent) pairs.

    python -m experiments.bigan --gin_file=configs/bigan_digits.gin

Donahue et al. 2017 (arXiv:1605.09782), with the networks of SN-GAN (Miyato et al. 2018,
arXiv:1802.05957). A pair is a real image with its encoded latent, or a random latent with the
image generated from it.
"""

from collections.abc import Callable

import replicator
from models.gan import gans
from models.gan.evaluation import sample_variance
from models.gan.latents.distributions import draw, normal_latents
from models.gan.losses import adversarial
from models.gan.networks.sngan import Encoder, SNGANDiscriminator, SNGANGenerator
from models.vision.builtin.digits import Digits
from models.vision.images.classes import NO_CLASSES, Classes
from models.vision.images.image_source import ImageSource, to_unit_range
from replicator import app
from replicator.errors import at_least_one

import gin
import keras
import tensorflow as tf


@gin.configurable(denylist=["image_shape", "classes"])
class BiGAN(tf.Module):
  """One training step: discriminator updates, one generator update, one encoder update.

  The three optimizers are made in the gin scopes `discriminator`, `generator` and `encoder`.

  Args:
    image_shape: (height, width, channels) of the data.
    classes: classes of the data, used if `conditional`; sample labels follow their frequencies.
    optimizer: makes a Keras optimizer.
    loss: makes the losses of discriminator and generator, one of `models.gan.losses.adversarial`.
    latent_dim: length of a latent z ~ N(0, 1).
    conditional: whether generator and discriminator receive labels.
    discriminator_updates: discriminator updates per generator update, each on a separate batch.
    generator_batch_ratio: batch size of a generator update, relative to a discriminator update.

  Raises:
    UsageError: a number is below 1.
  """

  generate = gans.generate
  reconstruct = gans.reconstruct
  may_collapse = sample_variance.COLLAPSE

  def __init__(self, image_shape: tuple[int, int, int], classes: Classes,
               optimizer: Callable[[], keras.optimizers.Optimizer] = gin.REQUIRED,
               loss: Callable[[], adversarial.AdversarialLoss] = adversarial.hinge,
               latent_dim: int = 128, conditional: bool = False, discriminator_updates: int = 5,
               generator_batch_ratio: int = 2):
    super().__init__()
    at_least_one("BiGAN", latent_dim=latent_dim, discriminator_updates=discriminator_updates,
                 generator_batch_ratio=generator_batch_ratio)
    resolution, _, channels = image_shape
    self.loss = loss()
    self.latents = normal_latents
    self.latent_dim = latent_dim
    self.classes = classes if conditional else NO_CLASSES
    self.num_classes = len(self.classes)
    self.batches = discriminator_updates
    self.generator_batch_ratio = generator_batch_ratio
    self.generator = SNGANGenerator(resolution, channels, latent_dim, num_classes=self.num_classes)
    self.discriminator = SNGANDiscriminator(resolution, channels, num_classes=self.num_classes,
                                            latent_dim=latent_dim)
    self.encoder = Encoder(resolution, channels, latent_dim)
    self.optimizers = replicator.wrap_optimizers(
        optimizer, discriminator=self.discriminator, generator=self.generator, encoder=self.encoder)

  def __call__(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Takes one step: `{"image": uint8 [n, h, w, c], "label": int32 [n]}` -> scalars, float [].

    The scalars are `loss/discriminator`, `loss/generator` and `loss/encoder`. Those of the last
    discriminator update are `d_accuracy`, the fraction of pairs classified correctly, and the
    scalars of `sample_variance.variances`.
    """
    for part in replicator.split(batch, self.batches):
      images, labels = to_unit_range(part["image"], keras.config.floatx()), part["label"]
      size = images.shape[0]
      discriminator_loss, accuracy, moments = self.optimizers["discriminator"].minimize(
          self._discriminator_loss, images, labels, *draw(self, size))
    generator_loss = self.optimizers["generator"].minimize(
        self._generator_loss, *draw(self, self.generator_batch_ratio * size))
    encoder_loss = self.optimizers["encoder"].minimize(self._encoder_loss, images, labels)
    return {"loss/discriminator": discriminator_loss, "loss/generator": generator_loss,
            "loss/encoder": encoder_loss, "d_accuracy": accuracy,
            **sample_variance.variances(moments)}

  def _discriminator_loss(self, images: tf.Tensor, labels: tf.Tensor, z: tf.Tensor,
                          fake_labels: tf.Tensor) -> tuple:
    latents = self.encoder(images, training=True)
    fakes = self.generator(z, fake_labels, training=True)
    # Real and generated pairs in one call, so that both use the same singular vectors.
    pairs = [tf.concat(both, 0) for both in ((images, fakes), (labels, fake_labels), (latents, z))]
    real, fake = tf.split(self.discriminator(*pairs, training=True), 2)
    return (self.loss.discriminator(real, fake), self.loss.accuracy(real, fake),
            sample_variance.moments(images, fakes))

  def _generator_loss(self, z: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    fakes = self.generator(z, labels, training=True)
    return self.loss.generator(self.discriminator(fakes, labels, z, training=True))

  def _encoder_loss(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    # Real pairs should look generated.
    latents = self.encoder(images, training=True)
    return self.loss.encoder(self.discriminator(images, labels, latents, training=True))


@gin.configurable
def train_bigan(workdir: str, data: Callable[[], ImageSource] = Digits) -> None:
  """Trains BiGAN on `data`, or resumes the run in `workdir`."""
  gans.train(BiGAN, data, workdir)


if __name__ == "__main__":
  app.run(train_bigan)
