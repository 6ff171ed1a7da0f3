"""Mean and covariance of features, which can be added over batches, replicas and processes."""

from __future__ import annotations

import dataclasses

from models.metrics.distances.checks import checked, same_dimensions
from replicator import UsageError

import numpy as np
import numpy.typing as npt

_ROWS = 4096  # Rows converted to float64 at a time, to limit memory.


@dataclasses.dataclass(frozen=True)
class FeatureStatistics:
  """Count, mean and scatter of a set of features, in float64.

  `a + b` describes the union of both sets. So statistics of batches, replicas or processes add up
  to those of all data, in any order and grouping, up to float64 rounding. Memory is that of the
  scatter, 34 MB for 2,048 dimensions, for any number of samples.

  It combines means instead of sums of squares, whose difference cancels if the mean is large
  compared with the spread (Chan, Golub and LeVeque 1983, equation 2.1).
  """

  count: int  # The number of samples.
  mean: np.ndarray  # float64 [d].
  scatter: np.ndarray  # float64 [d, d], the sum of (x - mean)(x - mean)^T over all samples.

  @classmethod
  def of(cls, features: npt.ArrayLike, whose: str = "given") -> FeatureStatistics:
    """Computes statistics of features [n, d]; n may be 0, to start a sum. `whose` is for errors.

    Raises:
      UsageError: the features have the wrong shape, or are not finite.
    """
    array = checked(features, whose, at_least=0)
    dimensions = array.shape[1]
    total = cls(0, np.zeros(dimensions), np.zeros([dimensions, dimensions]))
    for i in range(0, len(array), _ROWS):
      rows = array[i:i + _ROWS].astype(np.float64)
      mean = rows.mean(axis=0)
      rows -= mean
      total = total + cls(len(rows), mean, rows.T @ rows)
    return total

  def __add__(self, other: FeatureStatistics) -> FeatureStatistics:
    """Returns the statistics of the union of both sets."""
    same_dimensions(len(self.mean), len(other.mean))
    if min(self.count, other.count) == 0:
      return self if self.count else other
    count = self.count + other.count
    share = other.count / count
    gap = other.mean - self.mean
    between = (self.count * share * gap)[:, None] * gap
    return FeatureStatistics(count, self.mean + share * gap,
                             between + self.scatter + other.scatter)

  @property
  def covariance(self) -> np.ndarray:
    """The unbiased covariance, float64 [d, d]: that of `np.cov`.

    Raises:
      UsageError: there are fewer than two samples.
    """
    if self.count < 2:
      raise UsageError(f"A covariance of {self.count} samples: it needs at least 2, and to be "
                       "accurate, more samples than dimensions")
    return self.scatter / (self.count - 1)
