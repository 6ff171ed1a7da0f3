"""DMD2 and its teacher: updates by the formulas, and what is learned."""

import gin
import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from experiments import diffusion, dmd2
from models.diffusion.gaussians import GaussianMixture
from replicator import random
from replicator.app import config
from replicator.step import context
from tests.experiments.tiny_gans import ROOT
from tests.models.diffusion.mixtures import score
from tests.programs import logs
from tests.programs.capabilities import eagerly
from tests.replicator.checkpoints.weights import held, saved

N, SIGMA_DATA = 5, 0.7


@gin.configurable(module="test_dmd2", denylist=["shape"])
class Plane(keras.Model):
  """F(x, level) = W x + b + level v, for examples of two numbers."""

  def __init__(self, shape):
    super().__init__()
    assert np.prod(shape) == 2
    self.dense = keras.layers.Dense(2, bias_initializer="glorot_normal")
    self.dense.build((None, 3))
    self.built = True

  def call(self, x, level):
    flat = tf.concat([tf.reshape(x, [-1, 2]), level[:, tf.newaxis]], 1)
    return tf.reshape(self.dense(flat), [-1, *x.shape[1:]])


def factors(sigma):
  """c_skip, c_out and c_in of table 1 of EDM."""
  total = sigma ** 2 + SIGMA_DATA ** 2
  return SIGMA_DATA ** 2 / total, sigma * SIGMA_DATA / np.sqrt(total), 1 / np.sqrt(total)


def inputs_of(x, sigma):
  return np.concatenate([factors(sigma)[2] * x, np.log(sigma) / 4], 1)


def denoised(weights, x, sigma):
  kernel, bias = weights
  skip, out, _ = factors(sigma)
  return skip * x + out * (inputs_of(x, sigma) @ kernel + bias)


def gradients_of(by_output, x, sigma):
  """The gradients of kernel and bias, from that by what the denoiser returns."""
  by_network = factors(sigma)[1] * by_output
  return [inputs_of(x, sigma).T @ by_network, by_network.sum(0)]


def draws():
  """The draws of a step, in its order; the levels are columns."""
  z, noise = (random.normal(name, [N, 2]).numpy() for name in ("z", "noise"))
  low, high = 0.002 ** (1 / 7), 80 ** (1 / 7)
  u = random.uniform("level", [N], 0.02, 0.98).numpy()
  return z, noise, (high + u[:, np.newaxis] * (low - high)) ** 7


def test_a_step_makes_the_updates_of_the_formulas(float64, monkeypatch):
  keras.utils.set_random_seed(0)
  config.parse([], ["Denoiser.network = @Plane", f"Denoiser.sigma_data = {SIGMA_DATA}"])
  monkeypatch.setattr(context.run, "global_batch_size", N)
  mixture = GaussianMixture(deviation=0.3)
  step = dmd2.DMD2((2,), lambda: keras.optimizers.SGD(1.0), lambda shape: mixture)
  before = [[v.numpy() for v in network.trainable_variables]
            for network in (step.fake, step.generator)]
  with context.entered(tf.constant(0, tf.int64)):
    of_fake, of_generator = draws(), draws()
  with context.entered(tf.constant(0, tf.int64)):
    scalars = step()
  after = [[v.numpy() for v in network.trainable_variables]
           for network in (step.fake, step.generator)]
  highest = np.full([N, 1], 80.0)

  z, noise, sigma = of_fake
  x = denoised(before[1], 80 * z, highest)
  error = denoised(before[0], x + sigma * noise, sigma) - x
  weight = (sigma ** 2 + SIGMA_DATA ** 2) / (sigma * SIGMA_DATA) ** 2
  np.testing.assert_allclose(scalars["fake"], (weight * error ** 2).mean(), rtol=1e-9)
  expected = gradients_of(2 * weight * error / error.size, x + sigma * noise, sigma)
  for old, new, gradient in zip(before[0], after[0], expected, strict=True):
    np.testing.assert_allclose(old - new, gradient, rtol=1e-9)

  # In scores, as the paper: w (s_fake - s_real) with w = sigma^2 / mean|x - D_real(x_t)|.
  z, noise, sigma = of_generator
  x = denoised(before[1], 80 * z, highest)
  noisy = x + sigma * noise
  s_fake = (denoised(after[0], noisy, sigma) - noisy) / sigma ** 2
  s_real = np.stack([score(each, s[0], mixture.means, 0.3)
                     for each, s in zip(noisy, sigma, strict=True)])
  real = noisy + sigma ** 2 * s_real
  w = sigma ** 2 / np.abs(x - real).mean(1, keepdims=True)
  gradient = w * (s_fake - s_real)
  np.testing.assert_allclose(scalars["matching"], (gradient ** 2).mean() / 2, rtol=1e-9)
  expected = gradients_of(gradient / gradient.size, 80 * z, highest)
  for old, new, wanted in zip(before[1], after[1], expected, strict=True):
    np.testing.assert_allclose(old - new, wanted, rtol=1e-9)


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
  with context.entered(tf.constant(0, tf.int64)):
    scalars = step({"image": images})
  np.testing.assert_allclose(scalars["loss"], (weight * error ** 2).mean(), rtol=1e-9)


TINY = ["train.precision = 'float64'", "train.global_batch_size = 4", "train.steps = 3",
        "train.log_every = 1", "train.eval_every = 0", "train.checkpoint_every = 3",
        "train.steps_per_call = 1", "Replicator.jit_compile = False", "DenoisingMLP.units = 4"]


@pytest.mark.slow
def test_all_networks_begin_as_the_averages_of_a_trained_teacher(tmp_path, monkeypatch):
  config.parse([str(ROOT / "configs/diffusion_digits.gin")], TINY)
  with eagerly():
    diffusion.diffusion(str(tmp_path / "teacher"))
  config.parse([str(ROOT / "configs/dmd2_digits.gin")], [
      *TINY, "train.eval_every = 3", "generator/wrap_optimizer.every = 2",
      f"train.start_from = '{tmp_path / 'teacher'}'"])
  seen = []

  def evaluate(step):
    seen.append(held(step))
    return replicator.Evaluation({})
  monkeypatch.setattr(dmd2, "BesideTeacher", lambda _: evaluate)
  with eagerly():
    dmd2.dmd2(str(tmp_path / "student"))
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
  dmd2.dmd2(str(tmp_path))
  first, last = (row for row in logs.rows(tmp_path) if "eval/modes" in row)
  assert (first["eval/modes"], last["eval/modes"], last["eval/teacher_modes"]) == (1, 8, 8)
  assert last["eval/largest_share"] < 0.25 and last["eval/within"] > 0.5
