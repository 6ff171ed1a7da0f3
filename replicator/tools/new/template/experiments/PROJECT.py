"""An adversarial autoencoder: three networks trained in one replica step.

    python -m experiments.PROJECT --gin_file=PROJECT.gin

Makhzani et al. 2015 (arXiv:1511.05644): a discriminator makes the encoder's latents look like draws
from N(0, 1), so the decoder can turn such draws into images.
"""

from collections.abc import Callable

import replicator  # first: it quiets TensorFlow
from replicator import app, random

import gin
import keras
import tensorflow as tf

from models import PROJECT as networks
from models.vision.builtin.digits import Digits
from models.vision.images.grid import paired_grid
from models.vision.images.image_source import ImageSource, to_unit_range


@gin.configurable(denylist=["image_shape"])
class AdversarialAutoencoder(tf.Module):
  """One training step: updates the autoencoder, then the discriminator.

  Args:
    image_shape: (height, width, channels) of the data.
    optimizer: makes a Keras optimizer, in the gin scopes `autoencoder` and `discriminator`.
    latent_dim: size of a latent.
    adversarial_weight: weight of the adversarial term in the autoencoder's loss.
  """

  def __init__(self, image_shape: tuple[int, int, int],
               optimizer: Callable[[], keras.optimizers.Optimizer] = gin.REQUIRED,
               latent_dim: int = 8, adversarial_weight: float = 0.05):
    super().__init__()
    self.latent_dim = latent_dim
    self.adversarial_weight = adversarial_weight
    self.encoder = networks.encoder(image_shape, latent_dim)
    self.decoder = networks.decoder(image_shape, latent_dim)
    self.discriminator = networks.discriminator(latent_dim)
    self.optimizers = replicator.wrap_optimizers(
        optimizer, autoencoder=[self.encoder, self.decoder], discriminator=self.discriminator)

  def __call__(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Takes one step: `{"image": uint8 [n, h, w, c]}` -> the losses, float []."""
    images = to_unit_range(batch["image"], keras.config.floatx())
    autoencoder, reconstruction = self.optimizers["autoencoder"].minimize(
        self._autoencoder_loss, images)
    latents = random.normal("latents", [images.shape[0], self.latent_dim])
    discriminator = self.optimizers["discriminator"].minimize(
        self._discriminator_loss, images, latents)
    return {"loss/autoencoder": autoencoder, "loss/reconstruction": reconstruction,
            "loss/discriminator": discriminator}

  def _autoencoder_loss(self, images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    latents = self.encoder(images, training=True)
    error = tf.reduce_mean(tf.square(self.decoder(latents, training=True) - images))
    doubt = tf.reduce_mean(tf.nn.softplus(-self.discriminator(latents)))
    return error + self.adversarial_weight * doubt, error

  def _discriminator_loss(self, images: tf.Tensor, drawn: tf.Tensor) -> tf.Tensor:
    latents = self.encoder(images, training=True)
    return tf.reduce_mean(tf.nn.softplus(-self.discriminator(drawn))
                          + tf.nn.softplus(self.discriminator(latents)))

  def reconstruct(self, images: tf.Tensor) -> tf.Tensor:
    """Encodes and decodes images: uint8 `[n, h, w, c]` -> floats, -1 to 1."""
    return self.decoder(self.encoder(to_unit_range(images, keras.config.floatx())))


@gin.configurable
def train_PROJECT(workdir: str, data: Callable[[], ImageSource] = Digits) -> None:
  """Trains an autoencoder on `data`, or resumes the run in `workdir`."""
  source = data()

  def evaluate(step: AdversarialAutoencoder) -> replicator.Evaluation:
    images = tf.stack([source.load(index)["image"] for index in tf.range(20, dtype=tf.int64)])
    decoded = step.reconstruct(images)
    error = tf.reduce_mean(tf.square(decoded - to_unit_range(images, decoded.dtype)))
    return replicator.Evaluation({"reconstruction_error": float(error)},
                                 {"samples": paired_grid(images, decoded)})

  replicator.train(lambda: AdversarialAutoencoder(source.image_shape), source, evaluate,
                   workdir=workdir)


if __name__ == "__main__":
  app.run(train_PROJECT)
