"""Precision, recall, density and coverage: exact at ties, and however the pairs are divided.

`test_goldens` compares them with those of other packages, where many distances are equal, too.
"""

from models.metrics.distances import neighbors
from models.metrics.distances.neighbors import IMPROVED, PRDC, Convention, neighbor_scores

import numpy as np
import pytest

RANDOM = np.random.default_rng(0)
CLOSED, OPEN = Convention(2, closed=True), Convention(2, closed=False)
# Far from the origin, where |x|^2 - 2 x . y + |y|^2 cancels to a few digits.
FAR = (RANDOM.normal(size=[700, 64]) + 40).astype(np.float32)


@pytest.mark.parametrize("entries", [1, 900, 10 ** 5, 10 ** 9])
def test_blocks_are_invisible(monkeypatch, entries):
  generated = np.concatenate([FAR[:300], FAR[300:] + 0.3])
  whole = neighbor_scores(FAR, generated)
  monkeypatch.setattr(neighbors, "_ENTRIES", entries)
  assert neighbor_scores(FAR, generated) == whole


@pytest.mark.parametrize("real", [FAR, FAR * 1e-9, FAR[:, :1]], ids=["far", "small", "line"])
def test_copies_of_the_real_samples_are_ties(real):
  # Each ball has its center, k - 1 others and, on its surface, the k-th.
  closed, opened = neighbor_scores(real, RANDOM.permutation(real), [CLOSED, OPEN])
  if real.shape[1] > 1:
    assert closed == (1, 1, 3 / 2, 1) and opened == (1, 1, 1, 1)
  assert closed[:2] == (1, 1) and closed.density >= 3 / 2


def test_a_collapsed_generator_on_a_real_sample():
  generated = np.repeat(FAR[:1], 50, axis=0)
  closed, opened = neighbor_scores(FAR, generated, [CLOSED, OPEN])
  # Its balls have no radius: closed ones contain the one real sample, and open ones nothing.
  assert (closed.precision, closed.recall) == (1, 1 / 700)
  assert (opened.precision, opened.recall) == (1, 0)


def test_equal_real_samples_have_balls_without_a_radius():
  real = np.repeat(FAR[:1], 50, axis=0)
  closed, opened = neighbor_scores(real, np.concatenate([FAR[:5], FAR[:1]]), [CLOSED, OPEN])
  assert closed == pytest.approx((2 / 6, 1, 2 * 50 / (2 * 6), 1))
  assert (opened.precision, opened.density, opened.coverage) == (0, 0, 0)


def test_rounding_of_the_worst_kind_breaks_no_tie(monkeypatch):
  exact = neighbors._squared_distances

  def rounded(points, others):
    for rows, squared in exact(points, others):
      error = 64 * np.finfo(np.float64).eps * np.sum(FAR[0] ** 2)
      yield rows, squared + RANDOM.uniform(-error, error, squared.shape)

  monkeypatch.setattr(neighbors, "_squared_distances", rounded)
  test_copies_of_the_real_samples_are_ties(FAR)
  test_a_collapsed_generator_on_a_real_sample()
  test_equal_real_samples_have_balls_without_a_radius()


def test_the_defaults_are_those_of_the_papers():
  assert (tuple(IMPROVED), tuple(PRDC)) == ((3, True), (5, False))
