"""The Fréchet distance between two sets of features, and its mean over classes."""

import contextlib
from typing import NamedTuple

from models.metrics.distances.checks import checked_pair, same_dimensions
from models.metrics.distances.feature_statistics import FeatureStatistics
from replicator import UsageError

import numpy as np
import numpy.typing as npt
from absl import logging


class IntraClassDistance(NamedTuple):
  """Fréchet distances between real and generated images within each class."""

  mean: float
  by_class: dict[int, float]


def frechet_distance(real: FeatureStatistics, generated: FeatureStatistics) -> float:
  """Computes |m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2)) of means and unbiased covariances.

  It is FID if the features are those of Inception's last pooling. Its bias decreases with the
  number of samples, so compare only values for equal counts. torch-fidelity computes means in
  float32, and the root from the eigenvalues of C1 C2; see `benchmarks/metric_parity.py` for the
  differences.

  A warning is logged if there are fewer samples than dimensions.

  Reference: Heusel et al. 2017 (arXiv:1706.08500), equation 6.

  Raises:
    UsageError: the dimensions differ, or a set has fewer than two samples.
  """
  same_dimensions(len(real.mean), len(generated.mean))
  _warn_of_few(real.count, generated.count, len(real.mean))
  return _distance(real.mean, _factor(real.covariance),
                   generated.mean, _factor(generated.covariance))


def intra_class_frechet_distance(
    real: npt.ArrayLike, real_labels: npt.ArrayLike, generated: npt.ArrayLike,
    generated_labels: npt.ArrayLike) -> IntraClassDistance:
  """Averages the Fréchet distances within each class, which detects classes without variety.

  Args:
    real: features [n, d].
    real_labels: the class of each, an integer or a name, [n].
    generated: features [m, d].
    generated_labels: likewise [m], the classes given to the generator.

  Reference: Miyato and Koyama 2018 (arXiv:1802.05637), section 4.

  Raises:
    UsageError: a class has fewer than two samples in either set, labels and features differ in
      number, or the features are invalid.
  """
  sets = checked_pair(real, generated)
  labels = np.asarray(real_labels), np.asarray(generated_labels)
  for features, of_rows, whose in zip(sets, labels, ("real", "generated"), strict=True):
    if of_rows.shape != (len(features),):
      raise UsageError(f"There are {len(features):,} {whose} features and labels of the shape "
                       f"{list(of_rows.shape)}: give one label for each row")
  classes = np.union1d(*labels)
  counts = [np.sum(labels[i][:, None] == classes, axis=0) for i in range(2)]
  for which, *found in zip(classes, *counts, strict=True):
    if min(found) < 2:
      raise UsageError(f"Class {which} has {found[0]:,} real and {found[1]:,} generated samples: "
                       "a distance within a class needs at least 2 of each")
  _warn_of_few(min(counts[0]), min(counts[1]), sets[0].shape[1], "in a class ")
  distances = {which.item(): _distance(*_gaussian(sets[0][labels[0] == which]),
                                       *_gaussian(sets[1][labels[1] == which]))
               for which in classes}
  return IntraClassDistance(float(np.mean(list(distances.values()))), distances)


def _distance(mean1: np.ndarray, factor1: np.ndarray,
              mean2: np.ndarray, factor2: np.ndarray) -> float:
  """Returns the distance between Gaussians with covariances C1 = F1 F1^T and C2 = F2 F2^T.

  The nonzero eigenvalues of C1 C2 are those of (F1^T F2)(F1^T F2)^T, so the trace of the root is
  the sum of the singular values of F1^T F2. They are never complex or negative, and accurate even
  for singular covariances, where the root of C1 C2 loses half of the digits.
  """
  gap = mean1 - mean2
  roots = np.linalg.svd(factor1.T @ factor2, compute_uv=False)
  # For equal sets, rounding may give -1e-13.
  distance = gap @ gap + np.sum(factor1 ** 2) + np.sum(factor2 ** 2) - 2 * np.sum(roots)
  return max(float(distance), 0.0)


def _factor(covariance: np.ndarray) -> np.ndarray:
  """Returns F with F F^T = C: [d, d] -> [d, d], or [d, rank] for a singular C."""
  with contextlib.suppress(np.linalg.LinAlgError):
    return np.linalg.cholesky(covariance)
  values, vectors = np.linalg.eigh(covariance)
  kept = values > values[-1] * len(values) * np.finfo(np.float64).eps  # The rest is rounding.
  return vectors[:, kept] * np.sqrt(values[kept])


def _gaussian(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns mean [d] and a factor of the covariance of features [n, d]; cheap if n is small."""
  rows = features.astype(np.float64)
  mean = rows.mean(axis=0)
  factor = (rows - mean).T / np.sqrt(len(rows) - 1)
  return mean, factor if len(rows) <= len(mean) else _factor(factor @ factor.T)


def _warn_of_few(num_real: int, num_generated: int, dimensions: int, where: str = "") -> None:
  if min(num_real, num_generated) < dimensions:
    logging.warning(
        "A Fréchet distance of %s real and %s generated samples %sin %s dimensions: with fewer "
        "samples than dimensions it is unreliable; compare it only with one of the same counts",
        f"{num_real:,}", f"{num_generated:,}", where, f"{dimensions:,}")
