"""DMD2 and its teacher: updates by the formulas, and what is learned."""

import itertools
from types import SimpleNamespace

import replicator
from experiments import diffusion, dmd2
from models.diffusion.gaussians import GaussianMixture
from replicator import random
from replicator.app import config
from replicator.step import context
from tests.experiments.line import (
  AVERAGING,
  assert_scalars,
  gradients_of,
  one_step,
  with_averages,
)
from tests.experiments.tiny_gans import ROOT
from tests.models.diffusion.mixtures import score
from tests.programs import logs
from tests.programs.capabilities import eagerly
from tests.replicator.training.checkpoints.runs import held, saved

import gin
import keras
import numpy as np
import pytest
import tensorflow as tf

N, SIGMA_DATA, START = 5, 0.7, 0.4
GAN, FAKE_GAN = 0.3, 0.2
IMAGES = np.random.default_rng(0).integers(0, 256, [N, 2]).astype(np.uint8)


@gin.configurable(module="test_dmd2", denylist=["shape"])
class Plane(keras.Model):
  """Two layers for examples of two numbers and their level, with a tanh between them."""

  num_features = 3

  def __init__(self, shape):
    super().__init__()
    assert np.prod(shape) == 2
    self.first = keras.layers.Dense(3, "tanh", bias_initializer="glorot_normal")
    self.last = keras.layers.Dense(2, bias_initializer="glorot_normal")
    self.first.build((None, 3))
    self.last.build((None, 3))
    self.built = True

  def call(self, x, level):
    return tf.reshape(self.last(self.features(x, level)), [-1, *x.shape[1:]])

  def features(self, x, level):
    return self.first(tf.concat([tf.reshape(x, [-1, 2]), level[:, tf.newaxis]], 1))


def factors(sigma):
  """c_skip, c_out and c_in of table 1 of EDM."""
  total = sigma ** 2 + SIGMA_DATA ** 2
  return SIGMA_DATA ** 2 / total, sigma * SIGMA_DATA / np.sqrt(total), 1 / np.sqrt(total)


def features(weights, x, sigma):
  inputs = np.concatenate([factors(sigma)[2] * x, np.log(sigma) / 4], 1)
  return np.tanh(inputs @ weights[0] + weights[1])


def denoised(weights, x, sigma):
  skip, out, _ = factors(sigma)
  return skip * x + out * (features(weights, x, sigma) @ weights[2] + weights[3])


def scores(weights, x, sigma):
  """The head's, whose weights follow those of the network."""
  h = features(weights, x, sigma) @ weights[4] + weights[5]
  return h / (1 + np.exp(-h)) @ weights[6] + weights[7]


def softplus(x):
  return np.log1p(np.exp(x)).mean()


def level(u):
  low, high = 0.002 ** (1 / 7), 80 ** (1 / 7)
  return (high + u[:, np.newaxis] * (low - high)) ** 7


def draws():
  """The draws of a step, in its order; the levels are columns."""
  z, noise = (random.normal(name, [N, 2]).numpy() for name in ("z", "noise"))
  return z, noise, level(random.uniform("level", [N], 0.02, 0.98).numpy())


def checked(before, after, loss):
  """Asserts that the loss falls by plain descent of rate 1, from the weights before."""
  for old, new, gradient in zip(before, after, gradients_of(loss, before), strict=True):
    np.testing.assert_allclose(old - new, gradient, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("is_gan", [False, True])
def test_a_step_makes_the_updates_of_the_formulas(is_gan, float64, monkeypatch):
  keras.utils.set_random_seed(0)
  config.parse([], ["Denoiser.network = @Plane", f"Denoiser.sigma_data = {SIGMA_DATA}"])
  monkeypatch.setattr(context.run, "global_batch_size", N)
  mixture = GaussianMixture(deviation=0.3)
  step = dmd2.DMD2((2,), lambda: keras.optimizers.SGD(1.0), lambda shape: mixture, start=START,
                   gan_weight=GAN, fake_gan_weight=FAKE_GAN)
  weights = lambda: [[v.numpy() for part in parts for v in part.trainable_variables]
                     for parts in ([step.fake, step.head], [step.generator])]
  (fake, generator), of_gan = weights(), float(is_gan)
  of_fake, of_generator = one_step(lambda: (draws(), draws()))
  scalars = one_step(step, *[{"image": IMAGES}] * is_gan)
  new_fake, new_generator = weights()
  start = level(np.full([N], START))
  made = lambda weights, z: denoised(weights, start * z, start)

  z, noise, sigma = of_fake
  x, images = made(generator, z), IMAGES / 127.5 - 1
  weight = (sigma ** 2 + SIGMA_DATA ** 2) / (sigma * SIGMA_DATA) ** 2
  noisy = lambda x: x + sigma * noise
  denoising = lambda fake: (weight * (denoised(fake, noisy(x), sigma) - x) ** 2).mean()
  discriminator = lambda fake: (softplus(scores(fake, noisy(x), sigma))
                                + softplus(-scores(fake, noisy(images), sigma)))
  checked(fake, new_fake,
          lambda fake: denoising(fake) + of_gan * FAKE_GAN * discriminator(fake))
  expected = {"loss/fake_score": denoising(fake), "loss/discriminator": discriminator(fake)}

  # In scores, as the paper: w (s_fake - s_real) with w = sigma^2 / mean|x - D_real(x_t)|.
  z, noise, sigma = of_generator
  x = made(generator, z)
  s_fake = (denoised(new_fake, noisy(x), sigma) - noisy(x)) / sigma ** 2
  s_real = np.stack([score(each, s[0], mixture.means, 0.3)
                     for each, s in zip(noisy(x), sigma, strict=True)])
  real = noisy(x) + sigma ** 2 * s_real
  w = sigma ** 2 / np.abs(x - real).mean(1, keepdims=True)
  gradient = w * (s_fake - s_real)
  adversarial = lambda generator: softplus(-scores(new_fake, noisy(made(generator, z)), sigma))
  checked(generator, new_generator, lambda generator: (
      (gradient * made(generator, z)).mean() + of_gan * GAN * adversarial(generator)))
  expected |= {"loss/distribution_matching": (gradient ** 2).mean() / 2,
               "loss/adversarial": adversarial(generator)}
  names = expected if is_gan else ("loss/fake_score", "loss/distribution_matching")
  assert_scalars(scalars, {name: expected[name] for name in names})


def test_the_loss_of_a_diffusion_step_is_that_of_its_paper(float64):
  config.parse([], ["Denoiser.network = @Plane", f"Denoiser.sigma_data = {SIGMA_DATA}"])
  step = diffusion.Diffusion((1, 2, 1), lambda: keras.optimizers.SGD(1.0), -1.0, 0.5)
  weights = [v.numpy() for v in step.denoiser.trainable_variables]
  images = np.random.default_rng(0).integers(0, 256, [N, 1, 2, 1]).astype(np.uint8)
  with context.entered(tf.constant(0, tf.int64)):
    noise = random.normal("noise", [N, 1, 2, 1]).numpy().reshape(N, 2)
    sigma = np.exp(-1.0 + 0.5 * random.normal("level", [N]).numpy())[:, np.newaxis]
  x = images.reshape(N, 2) / 127.5 - 1
  error = denoised(weights, x + sigma * noise, sigma) - x
  weight = (sigma ** 2 + SIGMA_DATA ** 2) / (sigma * SIGMA_DATA) ** 2
  scalars = one_step(step, {"image": images})
  np.testing.assert_allclose(scalars["loss/denoiser"], (weight * error ** 2).mean(), rtol=1e-9)


TINY = ["train.precision = 'float64'", "train.global_batch_size = 4", "train.steps = 3",
        "train.log_every = 1", "train.eval_every = 0", "train.checkpoint_every = 3",
        "train.steps_per_call = 1", "Replicator.jit_compile = False", "DenoisingMLP.units = 4"]


@pytest.mark.slow
def test_all_networks_begin_as_the_averages_of_a_trained_teacher(tmp_path, monkeypatch):
  config.parse([str(ROOT / "configs/diffusion_digits.gin")], TINY)
  with eagerly():
    diffusion.train_diffusion(str(tmp_path / "teacher"))
  config.parse([str(ROOT / "configs/dmd2_digits.gin")], [
      *TINY, "train.eval_every = 3", "generator/wrap_optimizer.every = 2",
      f"train.start_from = '{tmp_path / 'teacher'}'"])
  seen = []

  def evaluate(step):
    seen.append(held(step))
    return replicator.Evaluation({})
  monkeypatch.setattr(dmd2, "BesideTeacher", lambda _: evaluate)
  with eagerly():
    dmd2.train_dmd2(str(tmp_path / "student"))
  averages = {name.removeprefix("average of denoiser/"): value
              for name, value in saved(tmp_path / "teacher").items() if name.startswith("average")}
  first, last = seen
  for name, value in averages.items():
    for network in ("teacher", "fake", "generator"):
      np.testing.assert_array_equal(first[f"{network}/{name}"], value)
    np.testing.assert_array_equal(last[f"teacher/{name}"], value)
  assert all(any(np.any(last[f"{network}/{name}"] != value) for name, value in averages.items())
             for network in ("fake", "generator"))


@pytest.mark.slow
def test_the_generator_reaches_all_gaussians(tmp_path):
  config.parse([str(ROOT / "configs/dmd2_gaussians.gin")], [
      "train.steps = 1000", "train.log_every = 1000", "train.checkpoint_every = 0"])
  dmd2.train_dmd2(str(tmp_path))
  first, last = (row for row in logs.rows(tmp_path) if "eval/modes_covered" in row)
  assert (first["eval/modes_covered"], last["eval/modes_covered"],
          last["eval/teacher_modes_covered"]) == (1, 8, 8)
  assert last["eval/largest_mode_share"] < 0.25 and last["eval/high_quality_samples"] > 0.5


# ---- What trained steps make ---------------------------------------------------------------------


AVERAGED = ["Denoiser.network = @Plane", f"Denoiser.sigma_data = {SIGMA_DATA}", AVERAGING]
Z = np.random.default_rng(3).normal(size=[N, 2])


@pytest.mark.parametrize("steps", [1, 3])
def test_samples_are_made_in_so_many_steps_by_the_averages(steps, float64):
  config.parse([], AVERAGED)
  step = diffusion.Diffusion((1, 2, 1), lambda: keras.optimizers.SGD(1.0), steps=steps)
  averages = with_averages(step.optimizers["denoiser"])
  levels = [level(np.full([N], position)) for position in np.linspace(0.0, 1.0, steps)]
  x = levels[0] * Z
  for sigma, lower in itertools.pairwise(levels):  # Heun's method.
    slope = (x - denoised(averages, x, sigma)) / sigma
    euler = x + (lower - sigma) * slope
    x += (lower - sigma) * (slope + (euler - denoised(averages, euler, lower)) / lower) / 2
  expected = denoised(averages, x, levels[-1])
  found = step.generate(tf.constant(Z), tf.zeros([N], tf.int32))
  np.testing.assert_allclose(found[:, 0, :, 0], expected, rtol=1e-9)


def test_the_averaged_generator_starts_at_its_level(float64):
  config.parse([], AVERAGED)
  step = dmd2.DMD2((2,), lambda: keras.optimizers.SGD(1.0), start=START)
  averages = with_averages(step.optimizers["generator"])
  sigma = level(np.full([N], START))
  found = step.generate(tf.constant(Z), tf.zeros([N], tf.int32))
  np.testing.assert_allclose(found, denoised(averages, sigma * Z, sigma), rtol=1e-9)


def test_the_numbers_and_the_picture_of_the_teacher_are_beside_those_of_the_student():
  given = []

  def evaluate(step):
    made = step.generate(1, 2)
    given.append(made)
    return replicator.Evaluation(
        {"level": made}, {"samples": np.full([2, 2, 3], made, np.uint8)}, "a method")
  step = SimpleNamespace(latents=None, latent_dim=2, generate=lambda z, labels: 30,
                         generate_slowly=lambda z, labels: 70)
  beside = dmd2.BesideTeacher(evaluate)
  for _ in range(2):
    found = beside(step)
    assert found.scalars == {"level": 30, "teacher_level": 70}
    picture = found.images["samples"]
    assert (picture[:, :2] == 30).all() and (picture[:, -2:] == 70).all()
  assert sorted(given) == [30, 30, 70]  # The teacher is evaluated once.
