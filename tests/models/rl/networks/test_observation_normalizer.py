"""Running statistics of observations, against statistics of all observations together."""

from models.rl.networks import observation_normalizer
from models.rl.networks.observation_normalizer import Normalizer

import numpy as np
import pytest
import tensorflow as tf

RNG = np.random.default_rng(0)
SEEN = RNG.normal([5.0, -1e3, 0.0], [2.0, 1e-2, 1.0], [500, 3]).astype(np.float32)
SEEN[:, 2] = 7.0  # It never changes.


def updated(*parts):
  normalizer = Normalizer((3,))
  for part in parts:
    normalizer.update(part)
  return normalizer


@pytest.mark.parametrize("cuts, largest", [([], 2 ** 24), ([1, 2, 3, 400], 2 ** 24), ([], 100)])
def test_statistics_are_those_of_all_observations(cuts, largest, monkeypatch):
  monkeypatch.setattr(observation_normalizer, "_LARGEST", largest)
  normalizer = updated(*np.split(SEEN, cuts))
  seen = SEEN.astype(np.float64)
  np.testing.assert_allclose(normalizer.mean, seen.mean(0), rtol=1e-12)
  np.testing.assert_allclose(normalizer.sum_of_squares / normalizer.count, seen.var(0), rtol=1e-9)


def test_observations_get_mean_0_and_deviation_1():
  normalized = updated(SEEN)(tf.constant(SEEN)).numpy()
  np.testing.assert_allclose(normalized.mean(0), 0.0, atol=2e-3)  # float32 at mean 1e3
  np.testing.assert_allclose(normalized[:, :2].std(0), 1.0, rtol=2e-3)
  assert np.abs(updated(SEEN)(tf.constant([[1e9, 0.0, 0.0]]))[0, 0]) == 10.0


def test_a_pixel_that_never_changed_may_change():
  images = RNG.integers(0, 256, [20, 8, 8, 2], np.uint8)
  images[:, 0, 0] = 100
  normalizer = Normalizer((8, 8, 2))
  for part in np.split(images, [7]):
    normalizer.update(part)
  found = normalizer(tf.constant(images)).numpy()
  np.testing.assert_allclose(found.mean((0, 1, 2)), 0.0, atol=1e-6)
  np.testing.assert_allclose(found.std((0, 1, 2)), 1.0, rtol=1e-5)
  images[0, 0, 0] = 101
  moved = normalizer(tf.constant(images)).numpy() - found
  assert moved[0, 0, 0].min() > 0.01 and moved.max() < 0.02


def test_without_observations_or_disabled_it_changes_nothing():
  values = tf.constant([[1.0, -2.0, 3.0]])
  np.testing.assert_array_equal(Normalizer((3,))(values), values)
  disabled = Normalizer((3,), enabled=False)
  disabled.update(SEEN)
  np.testing.assert_array_equal(disabled(100.0 * values), 100.0 * values)
