"""DMD2: distills a diffusion model of many steps into a one-step generator.

    python -m experiments.dmd2 --gin_file=dmd2_gaussians.gin

Yin et al. 2024 (arXiv:2405.14867): distribution matching without noise-image pairs, with a
two-time-scale update rule (section 4.2). There are three networks: the generator; the frozen
teacher, whose score is that of the data; and the fake score, trained on the generator's samples.
If there are images, a head on the fake score's features is a GAN discriminator (section 4.3).
"""

import os
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import replicator
from models.diffusion import edm
from models.diffusion.distillation import matching_gradient, matching_loss
from models.diffusion.gaussians import GaussianMixture, PointEvaluator  # noqa: F401  (for gin)
from models.diffusion.networks import DenoisingMLP  # noqa: F401  (for gin)
from models.gan.evaluation.sample_evaluator import SampleEvaluator
from models.gan.latents.distributions import normal_latents
from models.gan.losses.adversarial import modified
from models.vision import sources  # noqa: F401  (for gin)
from models.vision.builtin.digits import Digits
from models.vision.images import grid
from models.vision.images.image_source import to_unit_range
from replicator import app, random

import gin
import keras
import numpy as np
import tensorflow as tf


@gin.configurable(denylist=["image_shape"])
class DMD2(tf.Module):
  """One training step: an update of the fake score and, at some steps, one of the generator.

  The optimizers are made in the gin scopes `fake`, which also updates the head, and `generator`,
  which updates at the steps that `wrap_optimizer.every` selects. All three networks have the same
  architecture, so `StartFrom.networks` can start them from a trained `experiments.diffusion`.

  Args:
    image_shape: shape of an example.
    optimizer: makes a Keras optimizer.
    teacher: makes the denoiser of the data, such as `@GaussianMixture`, from the shape.
    first: position of the highest noise level at which distributions are compared; see
      `edm.noise_level`.
    last: position of the lowest such level.
    start: position of the generator's input noise level. At the highest level, a teacher maps all
      noise to about the same image, and so would a generator that starts from its weights.
    teacher_steps: sampling steps of the teacher in the evaluation.
    gan_weight: weight of the GAN loss in the generator's loss.
    fake_gan_weight: weight of the GAN loss in the fake score's loss.
  """

  latents = staticmethod(normal_latents)
  num_classes = 0

  def __init__(self, image_shape: Sequence[int],
               optimizer: Callable[[], keras.optimizers.Optimizer] = gin.REQUIRED,
               teacher: Callable[[Sequence[int]], edm.Denoise] = edm.Denoiser, first: float = 0.02,
               last: float = 0.98, start: float = 0.0, teacher_steps: int = 20,
               gan_weight: float = 3e-3, fake_gan_weight: float = 1e-2):
    super().__init__()
    if not 0 <= first < last <= 1:
      raise replicator.UsageError(f"DMD2.first = {first} and DMD2.last = {last}: must satisfy "
                                  "0 <= first < last <= 1")
    self.image_shape, self.latent_dim = tuple(image_shape), int(np.prod(image_shape))
    self.first, self.last, self.teacher_steps = first, last, teacher_steps
    self.teacher = teacher(image_shape)
    self.fake, self.generator = edm.Denoiser(image_shape), edm.Denoiser(image_shape)
    self.teacher.trainable = False  # type: ignore[attr-defined]
    self.start, self.gan_weight, self.fake_gan_weight = start, gan_weight, fake_gan_weight
    features = self.fake.network.num_features
    self.head = keras.Sequential([
        keras.Input([features]), keras.layers.Dense(features, "silu"), keras.layers.Dense(1)])
    self.gan = modified()
    self.optimizers = replicator.wrap_optimizers(
        optimizer, fake=[self.fake, self.head], generator=self.generator)

  def __call__(self, batch: dict[str, tf.Tensor] | None = None) -> dict[str, tf.Tensor]:
    """Takes one step: `{"image": uint8 [n, *image_shape]}` or nothing -> scalars, float [].

    The scalars are `loss/fake_score`, and `loss/distribution_matching`, half the mean square of the
    gradient with respect to the samples. With images, `loss/discriminator` and `loss/adversarial`
    are the unweighted GAN losses of the head and of the generator.
    """
    images = None if batch is None else to_unit_range(batch["image"], keras.config.floatx())
    _, of_fake = self.optimizers["fake"].minimize(self._fake_loss, *self._draw(), images)
    _, of_generator = self.optimizers["generator"].minimize(
        self._generator_loss, *self._draw(), images is not None)
    return of_fake | of_generator

  def _draw(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Draws latents and noise, each `[n, *image_shape]`, and noise levels [n]."""
    n = replicator.batch_size()
    z, noise = (random.normal(name, [n, *self.image_shape]) for name in ("z", "noise"))
    return z, noise, edm.noise_level(random.uniform("level", [n], self.first, self.last))

  def _fake_loss(self, z: tf.Tensor, noise: tf.Tensor, sigma: tf.Tensor,
                 images: tf.Tensor | None) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    x = edm.one_step(self.generator, z, self.start)
    denoising = edm.denoising_loss(self.fake, x, noise, sigma)
    scalars = {"loss/fake_score": denoising}
    if images is None:
      return denoising, scalars
    discriminator = self.gan.discriminator(
        *(self._scores(edm.noisy(each, noise, sigma), sigma) for each in (images, x)))
    return (denoising + self.fake_gan_weight * discriminator,
            {**scalars, "loss/discriminator": discriminator})

  def _generator_loss(self, z: tf.Tensor, noise: tf.Tensor, sigma: tf.Tensor, is_gan: bool
                      ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    x = edm.one_step(self.generator, z, self.start)
    noisy = edm.noisy(x, noise, sigma)
    held = tf.stop_gradient(noisy)
    matching = matching_loss(x, matching_gradient(
        x, self.teacher(held, sigma), self.fake(held, sigma)))
    scalars = {"loss/distribution_matching": matching}
    if not is_gan:
      return matching, scalars
    adversarial = self.gan.generator(self._scores(noisy, sigma))
    return (matching + self.gan_weight * adversarial,
            {**scalars, "loss/adversarial": adversarial})

  def _scores(self, noisy: tf.Tensor, sigma: tf.Tensor) -> tf.Tensor:
    return self.head(self.fake.features(noisy, sigma))

  @replicator.any_batch_size
  def generate(self, z: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Samples the averaged generator: `[n, latent_dim] ~ N(0, 1), int32 [n] -> [n, ...]`."""
    del labels
    with self.optimizers["generator"].averaged_weights():
      return edm.one_step(self.generator, tf.reshape(z, [-1, *self.image_shape]), self.start)

  @replicator.any_batch_size
  def generate_slowly(self, z: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Samples the teacher from the same latents as `generate`, with the same shapes."""
    del labels
    return edm.sample(self.teacher, tf.reshape(z, [-1, *self.image_shape]), self.teacher_steps)


class BesideTeacher:
  """Evaluator of the generator and of its teacher, which is evaluated once.

  The teacher's metrics begin with `teacher_`, and its samples are on the right.
  """

  def __init__(self, evaluate: Callable[[Any], replicator.Evaluation]):
    self.evaluate = evaluate
    self.of_teacher: replicator.Evaluation | None = None

  def __call__(self, step: DMD2) -> replicator.Evaluation:
    """Returns the metrics and the picture of both."""
    if self.of_teacher is None:
      self.of_teacher = self.evaluate(SimpleNamespace(
          latents=step.latents, latent_dim=step.latent_dim, num_classes=0,
          generate=step.generate_slowly))
    own, teacher = self.evaluate(step), self.of_teacher
    return replicator.Evaluation(
        {**own.scalars, **{f"teacher_{name}": value for name, value in teacher.scalars.items()}},
        {"samples": grid.side_by_side(own.images["samples"], teacher.images["samples"])},
        own.method)


@gin.configurable
def train_dmd2(workdir: str, data: Callable[[], Any] = Digits,
               evaluator: Callable[[Any, str], Callable] = SampleEvaluator) -> None:
  """Distills a teacher, or resumes the run in `workdir`.

  Args:
    workdir: the folder of the run.
    data: makes the data, whose `image_shape` is that of the samples. If it is an image source, it
      also trains the GAN loss.
    evaluator: makes the evaluator from data and folder, such as `@PointEvaluator` for points.
  """
  source = data()
  replicator.train(
      lambda: DMD2(source.image_shape), source if hasattr(source, "load") else None,
      evaluate=BesideTeacher(evaluator(source, os.path.join(workdir, "classifier"))),
      workdir=workdir)


if __name__ == "__main__":
  app.run(train_dmd2)
