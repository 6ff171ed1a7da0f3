"""VQGAN: images as maps of discrete codes, from an autoencoder, a quantizer and a discriminator.

    python -m experiments.vqgan --gin_file=vqgan_shapes32.gin

Esser et al. 2021 (arXiv:2012.09841), equations 4 to 7. The gin file chooses the quantizer: finite
scalar quantization, or a moving-average codebook; see `models.gan.networks.quantizers`.
"""

from collections.abc import Callable
from typing import Any

import replicator
from models.gan import gans
from models.gan.evaluation.feature_metrics import FeatureMetrics
from models.gan.losses.adversarial import AdversarialLoss, hinge
from models.gan.networks.cyclegan import PatchDiscriminator
from models.gan.networks.quantizers import FSQ, Codebook, Quantizer, perplexity  # noqa: F401
from models.gan.networks.vqgan import VQGANAutoencoder
from models.vision.images import grid, image_source
from models.vision.images.image_source import (
  ImageSource,
  read,
  to_unit_range,
  train_validation_split,
)
from replicator import app
from replicator.step.optimizers.schedules import Number

import gin
import keras
import numpy as np
import tensorflow as tf

_AT_A_TIME = 250


@gin.configurable(denylist=["image_shape"])
class VQGAN(tf.Module):
  """One training step: an update of the autoencoder, its quantizer and the discriminator.

  The two optimizers are made in the gin scopes `autoencoder` and `discriminator`.

  Args:
    image_shape: (height, width, channels) of the images.
    optimizer: makes a Keras optimizer.
    quantizer: makes one of `models.gan.networks.quantizers`.
    autoencoder: makes the autoencoder from resolution, channels and dim, like `VQGANAutoencoder`.
    discriminator: makes the discriminator from resolution and channels, like `PatchDiscriminator`;
      its `trunk` must list its layers.
    loss: makes the adversarial loss.
    adversarial_weight: factor on the adaptive weight of the adversarial loss; a number or a
      schedule. The authors first train without that loss, and then with 0.8.
    feature_weight: weight of the distance between the discriminator's features of an image and of
      its reconstruction, which replaces LPIPS.
  """

  def __init__(self, image_shape: tuple[int, int, int],
               optimizer: Callable[[], keras.optimizers.Optimizer] = gin.REQUIRED,
               quantizer: Callable[[], Quantizer] = FSQ,
               autoencoder: Callable[..., Any] = VQGANAutoencoder,
               discriminator: Callable[..., Any] = PatchDiscriminator,
               loss: Callable[[], AdversarialLoss] = hinge,
               adversarial_weight: Number = 0.8, feature_weight: float = 1.0):
    super().__init__()
    shape = {"resolution": image_shape[0], "channels": image_shape[2]}
    self.adversarial_weight, self.feature_weight = adversarial_weight, feature_weight
    self.loss, self.quantizer = loss(), quantizer()
    self.autoencoder = autoencoder(**shape, dim=self.quantizer.dim)
    self.discriminator = discriminator(**shape)
    self.optimizers = replicator.wrap_optimizers(
        optimizer, autoencoder=self.autoencoder, discriminator=self.discriminator)

  def __call__(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Takes one step: `{"image": uint8 [n, h, w, c]}` -> scalars, float [].

    The scalars are `loss/autoencoder` and `loss/discriminator`, the losses of the two optimizers;
    the terms of the former, `loss/reconstruction`, `loss/commitment`, and `loss/adversarial`
    without its `adaptive_weight`; and the `perplexity` of the global batch's codes.
    """
    images = to_unit_range(batch["image"], keras.config.floatx())
    losses, means, gradients = replicator.microbatch(self._losses_and_gradients, images)
    autoencoder = self.optimizers["autoencoder"]
    last = [v is self.autoencoder.last.kernel for v in autoencoder.variables_updated].index(True)
    # Norms of the whole batch's gradients: the mean of the replicas' norms would be different.
    of_images, of_scores, means = replicator.all_mean(
        (gradients["images"][last], gradients["scores"][last], means))
    weight = tf.clip_by_value(tf.norm(of_images) / (tf.norm(of_scores) + 1e-4), 0.0, 1e4)
    weight *= replicator.scheduled(self.adversarial_weight)
    autoencoder.apply([of_image + weight * of_score for of_image, of_score in zip(
        gradients["images"], gradients["scores"], strict=True)])
    self.optimizers["discriminator"].apply(gradients["discriminator"])
    self.quantizer.update(means)
    total = losses["reconstruction"] + losses["commitment"] + weight * losses["adversarial"]
    return {"loss/autoencoder": total,
            **{f"loss/{name}": loss for name, loss in losses.items()},
            "adaptive_weight": weight, "perplexity": perplexity(means["usage"])}

  def _losses_and_gradients(self, images: tf.Tensor) -> tuple[dict, dict, dict]:
    """Returns the losses [], the quantizer's means, and the gradients of three losses, by name.

    The autoencoder's two losses have separate gradients, because the weight that combines them is
    known only after the last micro-batch.
    """
    autoencoder, discriminator = (self.optimizers[name] for name in (
        "autoencoder", "discriminator"))
    with tf.GradientTape(persistent=True) as tape:
      quantized = self.quantizer(self.autoencoder.encode(images), training=True)
      made = self.autoencoder.decode(quantized.codes)
      (real, *features), (fake, *made_features) = map(self._judge, (images, made))
      losses = {
          "reconstruction": _distance(images, made) + self.feature_weight * tf.add_n(
              [_distance(x, y) for x, y in zip(features, made_features, strict=True)]),
          "commitment": quantized.loss,
          "adversarial": self.loss.generator(fake),
          "discriminator": self.loss.discriminator(real, fake) / 2}
      scaled = {
          "images": autoencoder.scale_loss(losses["reconstruction"] + losses["commitment"]),
          "scores": autoencoder.scale_loss(losses["adversarial"]),
          "discriminator": discriminator.scale_loss(losses["discriminator"])}
    gradients = {
        name: tape.gradient(loss, [v.value for v in optimizer.variables_updated])
        for (name, loss), optimizer in zip(
            scaled.items(), (autoencoder, autoencoder, discriminator), strict=True)}
    return losses, quantized.means, gradients

  def _judge(self, images: tf.Tensor) -> list[tf.Tensor]:
    """Returns the patches' scores, and the features of the layers before them."""
    features, x = [], images
    with tf.name_scope("discriminator"):
      for layer in self.discriminator.trunk:
        x = layer(x)
        if isinstance(layer, keras.layers.LeakyReLU):
          features.append(x)
    return [tf.cast(each, images.dtype) for each in (x, *features)]

  @replicator.any_batch_size
  def reconstruct(self, images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns reconstructions and codes: uint8 `[n, h, w, c]` -> the same, int32 `[n, h', w']`."""
    with self.optimizers["autoencoder"].averaged_weights():
      vectors = self.autoencoder.encode(to_unit_range(images, keras.config.floatx()))
      quantized = self.quantizer(vectors)
      return self.autoencoder.decode(quantized.codes), quantized.indices


def _distance(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  return tf.reduce_mean(tf.abs(x - y))


class ReconstructionEvaluator:
  """Evaluator of reconstructions of held-out images."""

  on_all_workers = True

  def __init__(self, measured: ImageSource, folder: str):
    self.measured, self.folder = measured, folder
    self.metrics: FeatureMetrics | None = None

  def __call__(self, step: VQGAN) -> replicator.Evaluation:
    """Returns the metrics, and a picture with rows of images above their reconstructions."""
    # Not in the constructor, because nothing may be computed before the strategy exists.
    self.metrics = self.metrics or FeatureMetrics(self.measured, self.folder)
    count = self.measured.size
    images, _ = read(self.measured, np.arange(count))
    made, codes = (np.concatenate(parts) for parts in zip(*(
        step.reconstruct(images[i:i + _AT_A_TIME]) for i in range(0, count, _AT_A_TIME)),
        strict=True))
    usage = np.bincount(codes.ravel(), minlength=step.quantizer.num_codes) / codes.size
    compared = made[self.metrics.chosen]  # Of the images that the metrics compare.
    measured = self.metrics.measure(lambda _, part: compared[part])
    scalars = {
        "psnr": float(tf.reduce_mean(tf.image.psnr(images, image_source.to_uint8(made), 255))),
        "perplexity": float(perplexity(usage)), "codebook_usage": float(np.mean(usage > 0)),
        **{f"reconstruction_{name}": value for name, value in measured.items()}}
    shown = np.arange(36).reshape(3, 12) * count // 36
    rows = [x for row in shown for x in (images[row], image_source.to_uint8(made[row]))]
    return replicator.Evaluation(scalars, {"samples": grid.image_grid(np.concatenate(rows), 12)},
                                 self.metrics.description)


@gin.configurable
def train_vqgan(workdir: str, data: Callable[[], ImageSource] = gin.REQUIRED,
                validation_split: float = 0.1) -> None:
  """Trains VQGAN on `data`, or resumes the run in `workdir`.

  Args:
    workdir: the folder of the run.
    data: makes the source of the images.
    validation_split: fraction of the images held out for the evaluation.
  """
  source = data()
  gans.check_square(source)
  trained, measured = train_validation_split(source, validation_split)
  replicator.train(lambda: VQGAN(source.image_shape), trained,
                   ReconstructionEvaluator(measured, f"{workdir}/classifier"), workdir=workdir)


if __name__ == "__main__":
  app.run(train_vqgan)
