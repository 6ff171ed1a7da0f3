"""Precision, recall, density and coverage, by nearest neighbors in feature space."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from models.metrics.distances.checks import checked_pair

import numpy as np
import numpy.typing as npt

_ENTRIES = 2 ** 25  # Distances in memory at a time: 256 MB, and as much again temporarily.


class Convention(NamedTuple):
  """A definition of a sample's neighborhood: the ball up to its k-th nearest neighbor."""

  k: int  # At least 1; the sample itself does not count.
  closed: bool  # Whether points at exactly that distance are inside.


# Kynkäänniemi et al. 2019 (arXiv:1904.06991), equations 1 and 2, and torch-fidelity's defaults.
IMPROVED = Convention(k=3, closed=True)
# Naeem et al. 2020 (arXiv:2002.09797), equations 4 and 5; their package `prdc`, its example's k.
PRDC = Convention(k=5, closed=False)


class NeighborScores(NamedTuple):
  """Four scores of real and generated samples, and of the balls around them."""

  precision: float  # The fraction of generated samples inside a real ball.
  recall: float  # The fraction of real samples inside a generated ball.
  density: float  # The mean number of real balls around a generated sample, divided by k.
  coverage: float  # The fraction of real balls with a generated sample inside.


def neighbor_scores(real: npt.ArrayLike, generated: npt.ArrayLike,
                    conventions: Sequence[Convention] = (IMPROVED, PRDC)) -> list[NeighborScores]:
  """Computes all four scores under each convention, in one pass over the distances.

  It takes the time of three matrix products of all pairs, and the memory of the features and of
  some rows. The result does not depend on how the pairs are divided.

  Args:
    real: features [n, d].
    generated: features [m, d].
    conventions: definitions of the balls.

  Raises:
    UsageError: a set has no k-th neighbor, or the features are invalid.
  """
  most = max(convention.k for convention in conventions)
  real, generated = checked_pair(real, generated, most + 1, f"a neighborhood of k = {most}")
  tallies = [_Tally(convention, len(real), len(generated)) for convention in conventions]
  radii = list(zip(_radii(real, conventions), _radii(generated, conventions), strict=True))
  for rows, squared in _squared_distances(real, generated):
    distances = _rounded(squared)
    for tally, (of_real, of_generated) in zip(tallies, radii, strict=True):
      tally.add(rows, distances, of_real, of_generated)
  return [tally.scores() for tally in tallies]


def nearest(points: npt.ArrayLike, others: npt.ArrayLike,
            k: int = 1) -> tuple[np.ndarray, np.ndarray]:
  """Finds the k nearest of `others [m, d]` to each of `points [n, d]`, nearest first; m >= k.

  Returns their rows in `others`, int [n, k], and their distances, float32 [n, k].
  """
  points, others = checked_pair(points, others, 1, f"{k} nearest neighbors")
  rows, distances = np.empty([len(points), k], np.int64), np.empty([len(points), k], np.float32)
  for part, squared in _squared_distances(points, others):
    found = np.argpartition(squared, k - 1, axis=1)[:, :k]
    order = np.argsort(np.take_along_axis(squared, found, 1), axis=1, kind="stable")
    rows[part] = np.take_along_axis(found, order, 1)
    distances[part] = _rounded(np.take_along_axis(squared, rows[part], 1))
  return rows, distances


class _Tally:
  """Counts of pairs of a real and a generated sample, under one convention."""

  def __init__(self, convention: Convention, num_real: int, num_generated: int) -> None:
    self._k = convention.k
    self._is_inside = np.less_equal if convention.closed else np.less
    self._in_real_ball = np.zeros(num_generated, bool)
    self._in_generated_ball = np.zeros(num_real, bool)
    self._covered = np.zeros(num_real, bool)
    self._pairs = 0

  def add(self, rows: slice, distances: np.ndarray, real_radii: np.ndarray,
          generated_radii: np.ndarray) -> None:
    """Counts the distances [b, m] from the real samples of `rows` to all generated ones."""
    self._in_generated_ball[rows] = self._is_inside(distances, generated_radii).any(axis=1)
    inside = self._is_inside(distances, real_radii[rows, None])
    self._in_real_ball |= inside.any(axis=0)
    self._covered[rows] = inside.any(axis=1)
    self._pairs += int(np.count_nonzero(inside))

  def scores(self) -> NeighborScores:
    return NeighborScores(
        float(self._in_real_ball.mean()), float(self._in_generated_ball.mean()),
        self._pairs / (self._k * len(self._in_real_ball)), float(self._covered.mean()))


# ---- Distances ----------------------------------------------------------------------------------
#
# Both references compare float32 distances. `prdc` rounds them from float64 squares, as does
# this module. (With torch-fidelity's float32 squares, a sample has a nonzero distance from its
# copy.) The conventions differ at ties, so ties must be exact. Radii are therefore changed by the
# maximum rounding error of float64, outward for closed balls and inward for open ones, so that
# distances that are equal in exact arithmetic are always inside, or always outside.


def _squared_distances(points: np.ndarray,
                       others: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
  """Yields slices of points, and float64 |x - y|^2 from these to all others, [b, m]."""
  columns = others.astype(np.float64)
  column_norms = _squared_norms(columns)
  step = max(1, _ENTRIES // len(columns))
  for begin in range(0, len(points), step):
    rows = points[begin:begin + step].astype(np.float64)
    squared = (-2 * rows) @ columns.T
    squared += column_norms
    squared += _squared_norms(rows)[:, None]
    yield slice(begin, begin + len(rows)), squared


def _radii(points: np.ndarray, conventions: Sequence[Convention]) -> list[np.ndarray]:
  """Returns float32 [n] for each convention: the radius of the ball around each point."""
  squared = np.empty([len(conventions), len(points)])
  ks = [convention.k for convention in conventions]
  for rows, block in _squared_distances(points, points):
    # The nearest point is the point itself, so the k-th neighbor has index k.
    block.partition(sorted(set(ks)), axis=1)
    squared[:, rows] = block[:, ks].T
  # The error of a sum of d products is below d times the machine epsilon times its terms. For a
  # point at distance r, these are at most twice those of the center and of r.
  terms = 4 * _squared_norms(points) + 2 * squared
  error = (points.shape[1] + 8) * np.finfo(np.float64).eps * terms
  return [_rounded(radius + (bound if convention.closed else -bound))
          for convention, radius, bound in zip(conventions, squared, error, strict=True)]


def _squared_norms(points: np.ndarray) -> np.ndarray:
  return np.einsum("nd,nd->n", points, points, dtype=np.float64)


def _rounded(squared: np.ndarray) -> np.ndarray:
  """Returns distances, rounded to float32 like the references: the squares, then the roots."""
  distances = np.maximum(squared, 0, dtype=np.float32, casting="same_kind")
  return np.sqrt(distances, out=distances)
