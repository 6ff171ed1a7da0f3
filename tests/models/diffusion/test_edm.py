"""EDM's formulas, by a denoiser in closed form."""

import itertools

from models.diffusion import edm
from models.diffusion.gaussians import GaussianMixture, PointEvaluator
from models.diffusion.networks import DenoisingMLP
from tests.models.diffusion.mixtures import score

import numpy as np
import pytest
import tensorflow as tf

DRAW = np.random.default_rng(0)


def test_the_denoiser_of_gaussians_is_that_of_their_score(float64):
  mixture = GaussianMixture(modes=3, radius=0.7, deviation=0.2)
  x, sigma = DRAW.normal(size=[5, 2]), np.array([0.03, 0.1, 0.4, 1.0, 3.0])
  expected = [each + s ** 2 * score(each, s, mixture.means, 0.2)
              for each, s in zip(x, sigma, strict=True)]
  np.testing.assert_allclose(mixture(tf.constant(x), tf.constant(sigma)), expected, rtol=1e-9)


@pytest.mark.parametrize("steps", [1, 4])
def test_samples_are_those_of_algorithm_1(steps, float64):
  mixture = GaussianMixture()
  denoise = lambda x, s: mixture(tf.constant(x), tf.constant(s)).numpy()
  noise = DRAW.normal(size=[6, 2])
  i = np.arange(steps) / max(1, steps - 1)
  levels = np.append((80 ** (1 / 7) + i * (0.002 ** (1 / 7) - 80 ** (1 / 7))) ** 7, 0.0)
  x = levels[0] * noise
  for high, low in itertools.pairwise(levels):
    d = (x - denoise(x, high)) / high
    following = x + (low - high) * d
    if low:
      following = x + (low - high) * (d + (following - denoise(following, low)) / low) / 2
    x = following
  np.testing.assert_allclose(edm.sample(mixture, tf.constant(noise), steps), x, rtol=1e-9)
  if steps == 1:
    np.testing.assert_allclose(edm.one_step(mixture, tf.constant(noise)), x, rtol=1e-9)


def test_samples_of_the_closed_form_are_measured_as_the_data(float64):
  mixture = GaussianMixture()

  class Sampler:
    latent_dim, num_classes = 2, 0
    latents = staticmethod(lambda name, shape: tf.constant(DRAW.normal(size=shape)))
    generate = staticmethod(tf.function(lambda z, labels: edm.sample(mixture, z)))

  found = PointEvaluator(mixture, "none")(Sampler())
  assert found.images["samples"].shape == (256, 256, 3) and found.images["samples"].max() == 255
  for scalars in found.scalars, mixture.measure(mixture.draw(2000)):
    assert scalars["modes_covered"] == 8
    assert scalars["high_quality_samples"] == pytest.approx(0.989, abs=0.01)
    assert scalars["largest_mode_share"] == pytest.approx(0.125, abs=0.03)
    assert scalars["relative_std"] == pytest.approx(1.0, abs=0.05)
  ring = np.stack([np.cos(angles := DRAW.uniform(0, 2 * np.pi, 2000)), np.sin(angles)], 1)
  assert mixture.measure(ring)["high_quality_samples"] < 0.5
  lost = mixture.measure(np.repeat(mixture.means[:3], 10, 0))
  assert lost == {"modes_covered": 3, "high_quality_samples": 1,
                  "largest_mode_share": pytest.approx(1 / 3), "relative_std": 0}


def test_the_network_depends_on_all_that_it_gets_and_keeps_the_shape(float64):
  made = DenoisingMLP(shape := (3, 2), units=5)
  for variable in made.trainable_variables:
    variable.assign(DRAW.normal(size=variable.shape) / 5)
  x, level = tf.constant(DRAW.normal(size=[2, *shape])), tf.constant([0.3, -0.5], tf.float64)
  with tf.GradientTape() as tape:
    tape.watch([x, level])
    outputs = made(x, level)
  assert outputs.shape == x.shape
  gradients = tape.gradient(outputs, [x, level, *made.trainable_variables])
  assert all(np.all(np.abs(gradient).reshape(len(gradient), -1).max(1) > 0)
             for gradient in gradients[:2])
  assert all(gradient is not None for gradient in gradients)
