"""Nearest neighbors of samples, and the distances to them."""

import numpy as np

from models.metrics.comparison import Gathered
from models.metrics.distances.feature_statistics import FeatureStatistics
from models.metrics.memorization import measure, spread


def gathered(features):
  return Gathered(len(features), FeatureStatistics.of(features), features)


def test_distances_are_those_to_the_nearest_real_image():
  random = np.random.default_rng(0)
  real, generated = random.normal(size=[30, 4]), random.normal(size=[9, 4])
  generated[3] = real[11]
  found = measure(gathered(real), gathered(generated))
  apart = np.linalg.norm(generated[:, None] - real, axis=-1)
  np.testing.assert_array_equal(found.rows, np.argsort(apart, axis=1)[:, :6])
  np.testing.assert_allclose(found.generated, apart.min(1), rtol=1e-6, atol=1e-6)
  between = np.linalg.norm(real[:, None] - real, axis=-1) + 1e9 * np.eye(30)
  np.testing.assert_allclose(found.real, between.min(1), rtol=1e-6)
  assert found.rows[3, 0] == 11 and found.generated[3] < 1e-6
  assert found.medians()["real"] == np.median(found.real)


def test_fewer_real_images_than_neighbors():
  found = measure(gathered(np.array([[0.0], [3.0]])), gathered(np.array([[1.0]])))
  np.testing.assert_array_equal(found.rows, [[0, 1]])
  np.testing.assert_allclose(found.real, [3, 3])


def test_samples_are_spread_by_rank():
  distances = np.array([5.0, 0.0, 4.0, 1.0, 3.0, 2.0])
  np.testing.assert_array_equal(spread(distances, 3), [1, 5, 0])
  np.testing.assert_array_equal(spread(distances, 10), np.argsort(distances))
