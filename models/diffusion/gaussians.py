"""Gaussians on a circle: data with a closed-form denoiser, and metrics of samples."""

from collections.abc import Sequence
from typing import Any

import replicator
from models.gan.evaluation.sample_evaluator import samples
from replicator.errors import at_least_one

import gin
import numpy as np
import tensorflow as tf

_COVERED_SHARE = 0.2


@gin.configurable
class GaussianMixture:
  """A mixture of equal Gaussians on a circle in the plane; calling it denoises points.

  Args:
    image_shape: shape of a point, always (2,).
    modes: number of Gaussians.
    radius: radius of the circle of means.
    deviation: standard deviation of each Gaussian, in each direction.

  Attributes:
    means: the means, `[modes, 2]`.

  Raises:
    UsageError: a number is below 1 or not positive.
  """

  def __init__(self, image_shape: Sequence[int] = (2,), modes: int = 8, radius: float = 1.0,
               deviation: float = 0.05):
    at_least_one("GaussianMixture", modes=modes)
    for name, value in ("radius", radius), ("deviation", deviation):
      if not value > 0:
        raise replicator.UsageError(f"GaussianMixture.{name} = {value}: must be positive")
    self.image_shape = tuple(image_shape)
    self.deviation = deviation
    angles = 2.0 * np.pi * np.arange(modes) / modes
    self.means = radius * np.stack([np.cos(angles), np.sin(angles)], 1)

  def __call__(self, x: tf.Tensor, sigma: tf.Tensor) -> tf.Tensor:
    """Returns the expected clean points given noisy ones: `[n, 2], [n] or [] -> [n, 2]`.

    The posterior is a mixture of Gaussians, weighted by their noisy densities at x.
    """
    means = tf.constant(self.means, x.dtype)
    own, noise = self.deviation ** 2, tf.reshape(tf.square(sigma), [-1, 1])
    distances = tf.reduce_sum(tf.math.squared_difference(x[:, tf.newaxis], means), -1)
    shares = tf.nn.softmax(-0.5 * distances / (own + noise))
    return (own * x + noise * tf.matmul(shares, means)) / (own + noise)

  def draw(self, number: int, seed: int = 0) -> np.ndarray:
    """Draws points of the data, `[number, 2]`."""
    drawn = np.random.default_rng(seed)
    chosen = self.means[drawn.integers(len(self.means), size=number)]
    return chosen + self.deviation * drawn.normal(size=chosen.shape)

  def measure(self, points: np.ndarray) -> dict[str, float]:
    """Measures how points `[n, 2]` spread over the Gaussians, and around their means.

    Returns:
      modes_covered: number of Gaussians that have at least a fifth of their share of the points
        within 3 deviations.
      high_quality_samples: fraction of the points within 3 deviations of a mean; 0.989 for the
        data.
      largest_mode_share: fraction of the points that belong to the largest mode, by nearest mean.
      relative_std: root mean square distance of the points within 3 deviations, relative to the
        data.
    """
    distances = np.linalg.norm(points[:, np.newaxis] - self.means, axis=-1) / self.deviation
    nearest, distance = distances.argmin(1), distances.min(1)
    is_within = distance < 3.0
    count = len(self.means)
    shares = np.bincount(nearest[is_within], minlength=count) / len(points)
    # The mean square of a distance with density r exp(-r^2 / 2), given that it is below 3.
    of_data = 2.0 - 9.0 / (np.exp(4.5) - 1.0)
    return {"modes_covered": float(np.sum(shares >= _COVERED_SHARE / count)),
            "high_quality_samples": float(np.mean(is_within)),
            "largest_mode_share": float(
                np.bincount(nearest, minlength=count).max() / len(points)),
            "relative_std": float(np.sqrt(np.mean(distance[is_within] ** 2) / of_data))
            if is_within.any() else np.nan}


@gin.configurable(denylist=["data", "folder"])
class PointEvaluator:
  """Evaluator of generated points, for any step that `samples` can call.

  Args:
    data: the target mixture.
    folder: not used; nothing is saved.
    points: number of points to measure.
  """

  def __init__(self, data: GaussianMixture, folder: str, points: int = 2000):
    del folder
    at_least_one("PointEvaluator", points=points)
    self.data, self.points = data, points

  def __call__(self, step: Any) -> replicator.Evaluation:
    """Returns the metrics of `GaussianMixture.measure`, and a picture of the points."""
    points = np.asarray(samples(step, self.points), np.float64)
    return replicator.Evaluation(self.data.measure(points), {"samples": self.picture(points)},
                                 f"{self.points:,} points")

  def picture(self, points: np.ndarray) -> np.ndarray:
    """Draws a density map of points `[n, 2]`, uint8 `[256, 256, 3]`."""
    edge = 1.5 * np.abs(self.data.means).max()
    counts, *_ = np.histogram2d(-points[:, 1], points[:, 0], 128, [[-edge, edge]] * 2)
    levels = np.uint8(255 * np.minimum(1.0, counts / max(1, len(points) // 500)))
    return np.repeat(np.repeat(np.repeat(levels[..., np.newaxis], 3, 2), 2, 1), 2, 0)
