"""VQGAN: its updates are those of the formulas, on any number of replicas."""

import functools

from experiments import vqgan
from models.gan.networks.quantizers import FSQ, Codebook
from models.vision.images.image_source import InMemoryImages
from replicator.app import config
from tests.experiments.line import (
  AVERAGING,
  assert_scalars,
  gradients_of,
  one_step,
  with_averages,
)
from tests.experiments.tiny_gans import MIRRORED
from tests.programs.capabilities import eagerly
from tests.programs.closeness import close
from tests.programs.logs import assert_same_runs
from tests.replicator.training.runs import train

import keras
import numpy as np
import pytest
import tensorflow as tf

RATE, DIM = 0.5, 2
THREE_STEPS = ["train.precision = 'float64'", "train.steps = 3", "train.checkpoint_every = 3",
               "train.check_first_step = False"]
IMAGES = np.random.default_rng(0).integers(0, 256, [8, 2, 2, 1]).astype(np.uint8)


class Linear(keras.Model):
  """An autoencoder of two linear layers, with two vectors between them."""

  def __init__(self, **_):
    super().__init__()
    self.first, self.last = keras.layers.Dense(2 * DIM), keras.layers.Dense(4)
    self.first.build((None, 4))
    self.last.build((None, 2 * DIM))
    self.built = True

  def encode(self, images):
    return tf.reshape(self.first(tf.reshape(images, [-1, 4])), [-1, 1, 2, DIM])

  def decode(self, codes):
    return tf.reshape(self.last(tf.reshape(codes, [-1, 2 * DIM])), [-1, 2, 2, 1])


class Critic(keras.Model):
  """A discriminator with one hidden layer."""

  def __init__(self, **_):
    super().__init__()
    self.trunk = [keras.layers.Flatten(), keras.layers.Dense(3), keras.layers.LeakyReLU(0.25),
                  keras.layers.Dense(1)]
    self.trunk[1].build((None, 4))
    self.trunk[3].build((None, 3))
    self.built = True


def made(quantizer) -> vqgan.VQGAN:
  keras.utils.set_random_seed(0)
  return vqgan.VQGAN((2, 2, 1), lambda: keras.optimizers.SGD(RATE), quantizer, Linear, Critic,
                     adversarial_weight=0.8, feature_weight=0.3)


def codebook() -> Codebook:
  return Codebook(4, DIM, restart_below=0.9)


def losses_of(values, images, codes):
  """The losses and the vectors of weights, which may be complex, with constant `codes`."""
  where, size = (lambda x, below: np.where(x.real > 0, x, below * x)), np.size
  e, e_bias, w, w_bias, d, d_bias, s, s_bias = values
  vectors = images @ e + e_bias
  made = (vectors + (codes - vectors.real)) @ w + w_bias
  features = [where(x @ d + d_bias, 0.25) for x in (images, made)]
  real, fake = (x @ s + s_bias for x in features)
  distance = lambda x, y: where(x - y, -1).sum() / size(x)
  return {"reconstruction": distance(images, made) + 0.3 * distance(*features),
          "commitment": 0.25 * ((vectors - codes) ** 2).sum() / size(vectors),
          "adversarial": -fake.mean(),
          "discriminator": (where(1 - real, 0).mean() + where(1 + fake, 0).mean()) / 2}, vectors


@pytest.mark.parametrize("parts", [1, 2])
def test_a_step_makes_the_updates_of_the_formulas(parts, float64):
  config.parse([], [f"microbatch.n = {parts}"])
  step = made(codebook)
  variables = [*step.autoencoder.trainable_variables, *step.discriminator.trainable_variables]
  before, book = [v.numpy() for v in variables], step.quantizer.codes.numpy()
  images = IMAGES.reshape(8, 4) / 127.5 - 1
  vectors = losses_of(before, images, 0)[1].reshape(16, DIM)
  nearest = ((vectors[:, None] - book) ** 2).sum(2).argmin(1)
  given = images, book[nearest].reshape(8, 2 * DIM)
  losses, _ = losses_of(before, *given)
  of = {name: gradients_of(lambda moved, name=name: losses_of(moved, *given)[0][name], before)
        for name in losses}
  norm_of = lambda name: np.linalg.norm(of[name][2])  # By the kernel of the last layer.
  weight = 0.8 * norm_of("reconstruction") / (norm_of("adversarial") + 1e-4)
  found = one_step(step, {"image": tf.constant(IMAGES)})
  usage = np.bincount(nearest, minlength=4) / 16
  used = usage[usage > 0]
  assert_scalars(found, {
      **{f"loss/{name}": loss for name, loss in losses.items()}, "adaptive_weight": weight,
      "perplexity": np.exp(-(used * np.log(used)).sum()),
      "loss/autoencoder": (losses["reconstruction"] + losses["commitment"]
                           + weight * losses["adversarial"])})
  for i, (variable, value) in enumerate(zip(variables, before, strict=True)):
    gradient = (of["reconstruction"][i] + of["commitment"][i] + weight * of["adversarial"][i]
                if i < 4 else of["discriminator"][i])
    close(variable.numpy(), value - RATE * gradient, 1e-9, variable.path)
  lowest = 0.9 / 4
  shares = 0.99 * lowest + 0.01 * usage
  sums = 0.99 * lowest * book + 0.01 * (nearest == np.arange(4)[:, None]) @ vectors / 16
  close(step.quantizer.codes, sums / shares[:, None], 1e-9)


@pytest.mark.parametrize("make, bindings", [
    (codebook, MIRRORED[2]),
    pytest.param(codebook, MIRRORED[4], marks=pytest.mark.slow),
    pytest.param(codebook, [*MIRRORED[2], "microbatch.n = 2"], marks=pytest.mark.slow),
    pytest.param(lambda: FSQ((5, 4)), MIRRORED[2], marks=pytest.mark.slow)])
def test_replicas_do_not_change_the_training(make, bindings, tmp_path):
  # Three steps; codes are restarted in the second.
  trained = functools.partial(
      train, step=lambda: made(make), inputs=InMemoryImages(
          np.tile(IMAGES, [3, 1, 1, 1]), np.zeros(24), ("all",)))
  with eagerly():
    trained(tmp_path / "one", *THREE_STEPS)
  trained(tmp_path / "several", *THREE_STEPS, *bindings)
  assert_same_runs(tmp_path / "several", tmp_path / "one")


def test_reconstructions_are_measured(monkeypatch, tmp_path):
  class Metrics:
    description = "measured"

    chosen = np.array([3, 7, 8, 20, 31])  # Those that it compares.

    def __init__(self, source, folder):
      assert folder == str(tmp_path)

    def measure(self, generate):
      np.testing.assert_allclose(generate(5, slice(5)), decoded.numpy()[self.chosen])
      return {"frechet_distance": 3.0}

  monkeypatch.setattr(vqgan, "FeatureMetrics", Metrics)
  images = np.tile(IMAGES, [5, 1, 1, 1])
  step = made(lambda: FSQ((5, 4)))
  decoded, indices = step.reconstruct(images)
  evaluation = vqgan.ReconstructionEvaluator(
      InMemoryImages(images, np.zeros(40), ("all",)), str(tmp_path))(step)
  made_images = np.clip(np.round((decoded.numpy() + 1) * 127.5), 0, 255)
  psnr = 10 * np.log10(255 ** 2 / ((images - made_images) ** 2).mean((1, 2, 3))).mean()
  usage = np.bincount(indices.numpy().ravel(), minlength=20) / 80
  used = usage[usage > 0]
  assert evaluation.scalars == pytest.approx({
      "psnr": psnr, "perplexity": np.exp(-(used * np.log(used)).sum()),
      "codebook_usage": len(used) / 20, "reconstruction_frechet_distance": 3.0}, rel=1e-5)
  assert evaluation.images["samples"].dtype == np.uint8


def test_reconstructions_are_those_of_the_averages(float64):
  config.parse([], [AVERAGING])
  step = made(codebook)
  e, e_bias, w, w_bias = with_averages(step.optimizers["autoencoder"])
  vectors = (IMAGES.reshape(8, 4) / 127.5 - 1) @ e + e_bias
  book = step.quantizer.codes.numpy()
  nearest = ((vectors.reshape(16, 1, DIM) - book) ** 2).sum(2).argmin(1)
  images, indices = step.reconstruct(IMAGES)
  close(tf.reshape(images, [8, 4]), book[nearest].reshape(8, 2 * DIM) @ w + w_bias, 1e-9)
  assert indices.numpy().ravel().tolist() == nearest.tolist()
