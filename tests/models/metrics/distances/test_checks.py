"""Features that every metric refuses, in one line that names the fault."""

import re

from models.metrics.distances.feature_statistics import FeatureStatistics
from models.metrics.distances.frechet import frechet_distance
from models.metrics.distances.inception_score import inception_score
from models.metrics.distances.kernel import kernel_distance
from models.metrics.distances.neighbors import neighbor_scores
from replicator.errors import UsageError

import numpy as np
import pytest

RANDOM = np.random.default_rng(0)
GOOD = RANDOM.normal(size=[20, 4]).astype(np.float32)
NARROW = GOOD[:, :3]
PAIRS = {
    "kernel": lambda real, generated: kernel_distance(real, generated, 2, 10),
    "neighbors": neighbor_scores,
    "frechet": lambda real, generated: frechet_distance(
        FeatureStatistics.of(real, "real"), FeatureStatistics.of(generated, "generated")),
}
each_pair = pytest.mark.parametrize("metric", PAIRS.values(), ids=PAIRS)


def refused(words: str):
  """One line that has the words."""
  return pytest.raises(UsageError, match=re.compile(r"\A[^\n]*" + words + r"[^\n]*\Z"))


def broken(value):
  features = GOOD.copy()
  features[[7, 9], 2] = value
  return features


@each_pair
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_features_that_are_not_finite(metric, value):
  with refused("generated features are NaN or infinite in 2 of 20 rows, first in row 7"):
    metric(GOOD, broken(value))
  with refused("real features are NaN"):
    metric(broken(value), GOOD)


@each_pair
def test_different_dimensions(metric):
  with refused("real features have 4 dimensions and the generated ones 3"):
    metric(GOOD, NARROW)


@each_pair
def test_another_shape(metric):
  with refused(r"generated features have the shape \[20\]"):
    metric(GOOD, GOOD[:, 0])


@pytest.mark.parametrize("metric, words", [
    (lambda few: kernel_distance(GOOD, few, 2, 10), "4 generated samples, but KID with subset_size "
                                                    "= 10 needs 10"),
    (lambda few: neighbor_scores(few, GOOD), "4 real samples, but a neighborhood of k = 5 needs 6"),
    (lambda few: inception_score(broken(np.nan)), "NaN"),
    (lambda few: inception_score(few, 5), "4 generated samples, but .* of 5 splits needs 5"),
    (lambda few: FeatureStatistics.of(few[:1]).covariance, "covariance of 1 samples"),
])
def test_too_few_samples(metric, words):
  with refused(words):
    metric(GOOD[:4])
