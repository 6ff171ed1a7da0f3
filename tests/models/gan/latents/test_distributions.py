"""The distributions of codes, by their moments and bounds."""

from models.gan.latents import distributions

import gin
import numpy as np

SHAPE = [400, 100]


def test_truncated_normal_latents_stay_within_twice_the_truncation():
  gin.parse_config("truncated_normal_latents.truncation = 0.5")
  z = distributions.truncated_normal_latents("z", SHAPE).numpy()
  assert 0.99 < abs(z).max() <= 1.0
  # 0.8796 is the standard deviation of N(0, 1) within [-2, 2].
  np.testing.assert_allclose(z.std(), 0.5 * 0.8796, rtol=0.01)


def test_uniform_latents_are_uniform_from_minus_1_to_1():
  z = distributions.uniform_latents("z", SHAPE).numpy()
  assert -1 <= z.min() < -0.999 and 0.999 < z.max() < 1
  np.testing.assert_allclose([z.mean(), z.var()], [0, 1 / 3], atol=0.01)
