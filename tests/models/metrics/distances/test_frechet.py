"""Fréchet distances against closed forms; `test_goldens` has those of torch-fidelity."""

from models.metrics.distances.feature_statistics import FeatureStatistics
from models.metrics.distances.frechet import frechet_distance, intra_class_frechet_distance

import numpy as np
import pytest
from absl import logging

RANDOM = np.random.default_rng(0)


def gaussian(mean, covariance, count=1000):
  """Statistics with exactly these moments."""
  return FeatureStatistics(count, np.asarray(mean, float), np.asarray(covariance) * (count - 1.0))


def distance(real, generated):
  return frechet_distance(FeatureStatistics.of(real), FeatureStatistics.of(generated))


@pytest.fixture
def warnings(monkeypatch):
  lines = []
  monkeypatch.setattr(logging, "warning", lambda text, *values: lines.append(text % values))
  return lines


def test_a_singular_covariance_is_exact():
  # A point against a line: all variance remains, and orthogonal lines share nothing.
  line, other = np.diag([4.0, 0, 0]), np.diag([0, 9.0, 0])
  point = gaussian([0, 0, 2], np.zeros([3, 3]))
  assert frechet_distance(gaussian([0, 0, 0], line), point) == pytest.approx(8, rel=1e-12)
  assert frechet_distance(gaussian([0, 0, 0], line),
                          gaussian([0, 0, 0], other)) == pytest.approx(13, rel=1e-12)


@pytest.mark.parametrize("count", [500, 10])
def test_a_set_is_at_distance_0_from_itself(count):
  x = RANDOM.normal(size=[count, 40]) + 5
  x[:, 3] = 0
  assert 0 <= distance(x, x[::-1]) < 1e-10


def test_fewer_samples_than_dimensions_warn_with_both_numbers(warnings):
  distance(RANDOM.normal(size=[40, 40]), RANDOM.normal(size=[41, 40]))
  distance(RANDOM.normal(size=[30, 40]), RANDOM.normal(size=[1100, 40]))
  [line] = warnings
  assert "30 real and 1,100 generated samples in 40 dimensions" in line and "\n" not in line


# ---- Within classes -----------------------------------------------------------------------------


@pytest.mark.parametrize("dimensions", [4, 60])  # More and fewer than samples of a class.
def test_it_is_the_mean_of_the_distances_of_each_class(dimensions):
  real, generated = RANDOM.normal(size=[2, 90, dimensions])
  labels, others = np.arange(90) % 3 + 7, RANDOM.permutation(np.arange(90) % 3 + 7)
  found = intra_class_frechet_distance(real, labels, generated, others)
  expected = {c: distance(real[labels == c], generated[others == c]) for c in (7, 8, 9)}
  assert found.by_class == pytest.approx(expected, rel=1e-10)
  assert found.mean == pytest.approx(np.mean(list(expected.values())), rel=1e-10)


def test_few_samples_of_a_class_warn_once(warnings):
  x = RANDOM.normal(size=[60, 30])
  intra_class_frechet_distance(x, np.arange(60) % 3, x, np.arange(60) % 3)
  [line] = warnings
  assert "20 real and 20 generated samples in a class in 30 dimensions" in line
