"""Precision, recall, density and coverage: who lies within reach of whose nearest neighbors."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from models.metrics.distances.checks import checked_pair

import numpy as np
import numpy.typing as npt

_ENTRIES = 2 ** 25  # Distances that are held at a time: 256 MB, and as much again on the way.


class Convention(NamedTuple):
  """A rule for the neighborhood of a sample: a ball that reaches to its k-th nearest other one."""

  k: int  # At least 1; the sample itself does not count.
  closed: bool  # Whether a point at exactly that distance is inside.


# Kynkäänniemi et al. 2019 (arXiv:1904.06991), equations 1 and 2, and torch-fidelity's defaults.
IMPROVED = Convention(k=3, closed=True)
# Naeem et al. 2020 (arXiv:2002.09797), equations 4 and 5; their package `prdc`, its example's k.
PRDC = Convention(k=5, closed=False)


class NeighborScores(NamedTuple):
  """Four numbers about real samples, generated ones, and the balls around each."""

  precision: float  # The share of generated samples inside a real ball.
  recall: float  # The share of real samples inside a generated ball.
  density: float  # The mean number of real balls around a generated sample, divided by k.
  coverage: float  # The share of real balls with a generated sample inside.


def neighbor_scores(real: npt.ArrayLike, generated: npt.ArrayLike,
                    conventions: Sequence[Convention] = (IMPROVED, PRDC)) -> list[NeighborScores]:
  """All four numbers under each convention, in one pass over the distances.

  The time is that of three matrix products of all pairs; the memory that of the features and of
  some of the rows. The result does not depend on how the pairs are divided.

  Args:
    real: features [n, d].
    generated: features [m, d].
    conventions: what the balls are.

  Raises:
    UsageError: a set has no k-th neighbor, or no metric takes the features.
  """
  most = max(convention.k for convention in conventions)
  real, generated = checked_pair(real, generated, most + 1, f"a {most}-th neighbor of each")
  tallies = [_Tally(convention, len(real), len(generated)) for convention in conventions]
  radii = list(zip(_radii(real, conventions), _radii(generated, conventions), strict=True))
  for rows, squared in _squared_distances(real, generated):
    distances = _rounded(squared)
    for tally, (of_real, of_generated) in zip(tallies, radii, strict=True):
      tally.add(rows, distances, of_real, of_generated)
  return [tally.scores() for tally in tallies]


def nearest(points: npt.ArrayLike, others: npt.ArrayLike,
            k: int = 1) -> tuple[np.ndarray, np.ndarray]:
  """The k nearest of `others [m, d]` to each of `points [n, d]`, the nearest first.

  There are at least k others. Returns their rows in `others`, int [n, k], and their distances,
  float32 [n, k].
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
  """Counts of the pairs of a real and a generated sample, by one convention."""

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
# Both references compare distances as float32 numbers. `prdc` rounds them from float64 squares, and
# so does this module. (In torch-fidelity's float32 squares a sample is not at 0 from its copy.) The
# conventions differ at ties, so these must be exact. A radius is therefore moved by the most that
# the rounding of float64 can have made of it, outwards for closed balls and inwards for open ones:
# what is equal in exact arithmetic is always inside, or always outside.


def _squared_distances(points: np.ndarray,
                       others: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
  """Float64 |x - y|^2 of some points at a time to all others: which points, and [b, m]."""
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
  """Float32 [n] for each convention: how far the ball around each point reaches."""
  squared = np.empty([len(conventions), len(points)])
  ks = [convention.k for convention in conventions]
  for rows, block in _squared_distances(points, points):
    # A point is the nearest to itself, so the k-th other one has the index k.
    block.partition(sorted(set(ks)), axis=1)
    squared[:, rows] = block[:, ks].T
  # The error of a sum of d products is below d times the machine's precision of its terms. Those of
  # a point at the distance r are at most twice those of the center, and of r.
  terms = 4 * _squared_norms(points) + 2 * squared
  error = (points.shape[1] + 8) * np.finfo(np.float64).eps * terms
  return [_rounded(radius + (bound if convention.closed else -bound))
          for convention, radius, bound in zip(conventions, squared, error, strict=True)]


def _squared_norms(points: np.ndarray) -> np.ndarray:
  return np.einsum("nd,nd->n", points, points, dtype=np.float64)


def _rounded(squared: np.ndarray) -> np.ndarray:
  """Distances, rounded to float32 where the references round: the squares, then their roots."""
  distances = np.maximum(squared, 0, dtype=np.float32, casting="same_kind")
  return np.sqrt(distances, out=distances)
