"""Streamed statistics equal those of all data at once, however it is divided."""

import functools
import operator

from models.metrics.distances import feature_statistics
from models.metrics.distances.feature_statistics import FeatureStatistics

import numpy as np

RANDOM = np.random.default_rng(0)
FEATURES = (RANDOM.normal(size=[997, 12]) @ RANDOM.normal(size=[12, 12]) + 30).astype(np.float32)


def assert_equal(found, expected, tolerance=1e-13):
  assert found.count == expected.count
  np.testing.assert_allclose(found.mean, expected.mean, rtol=tolerance)
  np.testing.assert_allclose(found.scatter, expected.scatter, rtol=tolerance,
                             atol=tolerance * np.abs(expected.scatter).max())


def test_they_are_numpys_in_float64():
  found = FeatureStatistics.of(FEATURES)
  exact = FEATURES.astype(np.float64)
  np.testing.assert_allclose(found.mean, exact.mean(0), rtol=1e-14)
  np.testing.assert_allclose(found.covariance, np.cov(exact.T), rtol=1e-12)
  assert found.mean.dtype == found.scatter.dtype == np.float64


def test_unequal_parts_and_empty_ones_add():
  empty = FeatureStatistics.of(np.zeros([0, 12]))
  parts = [*np.split(FEATURES[:900], 900), FEATURES[900:]]
  found = functools.reduce(operator.add, map(FeatureStatistics.of, parts), empty)
  assert_equal(found + empty, FeatureStatistics.of(FEATURES))
  assert (empty + empty).count == 0


def test_a_large_mean_does_not_cancel():
  # In sums of squares, 1e8 + 1e-4 has 4 digits of the variance.
  x = RANDOM.normal(size=[10_000, 2]) * 1e-2 + 1e4
  found = functools.reduce(operator.add, map(FeatureStatistics.of, np.array_split(x, 200)))
  np.testing.assert_allclose(found.covariance, np.cov(x.T), rtol=1e-9, atol=1e-13)


def test_blocks_of_rows_are_invisible(monkeypatch):
  whole = FeatureStatistics.of(FEATURES)
  monkeypatch.setattr(feature_statistics, "_ROWS", 10)
  assert_equal(FeatureStatistics.of(FEATURES), whole)
