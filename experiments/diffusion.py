"""A diffusion model: a network that learns to denoise, and turns noise into images in 20 steps.

    python -m experiments.diffusion --gin_file=diffusion_digits.gin

EDM (Karras et al. 2022, arXiv:2206.00364): equations 2 and 7 with the settings of table 1, and the
deterministic sampler of algorithm 1. `experiments.dmd2` distills it into a one-step generator.
"""

import os
from collections.abc import Callable

import replicator
from models.diffusion import edm
from models.diffusion.networks import DenoisingMLP  # noqa: F401  (for gin)
from models.gan.evaluation.sample_evaluator import SampleEvaluator
from models.gan.latents.distributions import normal_latents
from models.vision import sources  # noqa: F401  (for gin)
from models.vision.builtin.digits import Digits
from models.vision.images.image_source import ImageSource, to_unit_range
from replicator import app, random
from replicator.errors import at_least_one

import gin
import keras
import numpy as np
import tensorflow as tf


@gin.configurable(denylist=["image_shape"])
class Diffusion(tf.Module):
  """One training step: an update of the denoiser.

  The optimizer is made in the gin scope `denoiser`. Samples are drawn with its averaged weights
  (`wrap_optimizer.ema_decay`).

  Args:
    image_shape: (height, width, channels) of the images.
    optimizer: makes a Keras optimizer.
    level_mean: mean of the log noise level during training.
    level_deviation: standard deviation of the log noise level.
    steps: sampling steps; see `edm.sample`.

  Raises:
    UsageError: `steps` is below 1.
  """

  latents = staticmethod(normal_latents)
  num_classes = 0

  def __init__(self, image_shape: tuple[int, int, int],
               optimizer: Callable[[], keras.optimizers.Optimizer] = gin.REQUIRED,
               level_mean: float = -1.2, level_deviation: float = 1.2, steps: int = 20):
    super().__init__()
    at_least_one("Diffusion", steps=steps)
    self.image_shape, self.latent_dim = image_shape, int(np.prod(image_shape))
    self.level_mean, self.level_deviation, self.steps = level_mean, level_deviation, steps
    self.denoiser = edm.Denoiser(image_shape)
    self.optimizers = replicator.wrap_optimizers(optimizer, denoiser=self.denoiser)

  def __call__(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Takes one step: `{"image": uint8 [n, h, w, c]}` -> `loss/denoiser`, float []."""
    images = to_unit_range(batch["image"], keras.config.floatx())
    noise = random.normal("noise", images.shape)
    levels = tf.exp(random.normal("level", images.shape[:1], self.level_mean,
                                  self.level_deviation))
    return {"loss/denoiser": self.optimizers["denoiser"].minimize(
        lambda *batch: edm.denoising_loss(self.denoiser, *batch), images, noise, levels)}

  @replicator.any_batch_size
  def generate(self, z: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Samples the averaged denoiser: `[n, latent_dim] ~ N(0, 1), int32 [n] -> [n, h, w, c]`."""
    del labels
    with self.optimizers["denoiser"].averaged_weights():
      return edm.sample(self.denoiser, tf.reshape(z, [-1, *self.image_shape]), self.steps)


@gin.configurable
def train_diffusion(workdir: str, data: Callable[[], ImageSource] = Digits) -> None:
  """Trains a diffusion model on `data`, or resumes the run in `workdir`."""
  source = data()
  replicator.train(lambda: Diffusion(source.image_shape), source,
                   SampleEvaluator(source, os.path.join(workdir, "classifier")), workdir=workdir)


if __name__ == "__main__":
  app.run(train_diffusion)
