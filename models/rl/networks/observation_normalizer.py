"""Normalization of observations to mean 0 and standard deviation 1."""

from replicator import replicated
from replicator.errors import above_zero

import gin
import keras
import numpy as np
import tensorflow as tf

_LARGEST = 2 ** 24  # Numbers that are added at once; in float64 they take 134 MB.


@gin.configurable(denylist=["shape"])
class Normalizer(tf.Module):
  """Normalizes observations by the running mean and variance of all seen (Chan et al. 1983).

  The statistics are variables: checkpoints save them, and they are equal on every replica. Images
  have those of each channel: a pixel that was always the same may change.

  Args:
    shape: shape of one observation; three axes mean an image.
    limit: normalized observations are clipped to `[-limit, limit]`.
    enabled: False leaves observations as they are.
  """

  def __init__(self, shape: tuple[int, ...], limit: float = 10.0, enabled: bool = True):
    super().__init__()
    above_zero("Normalizer", limit=limit)
    self.limit = limit
    self.enabled = enabled
    self._shape = shape[-1:] if len(shape) == 3 else shape
    self.count, self.mean, self.sum_of_squares = [
        replicated.variable(np.zeros(s), name=name)
        for name, s in (("count", ()), ("mean", self._shape),
                        ("sum_of_squares", self._shape))]

  def __call__(self, observations: tf.Tensor) -> tf.Tensor:
    """Normalized observations: `[n, *shape]` of any dtype -> floating `[n, *shape]`."""
    observations = tf.cast(observations, keras.config.floatx())
    if not self.enabled:
      return observations
    variance = self.sum_of_squares / tf.maximum(self.count, 1.0)
    # 1 before the first observation, and for numbers that never change.
    deviation = tf.where(variance > 1e-12, tf.sqrt(variance), tf.ones_like(variance))
    mean, deviation = (tf.cast(x, observations.dtype) for x in (self.mean, deviation))
    return tf.clip_by_value((observations - mean) / deviation, -self.limit, self.limit)

  def update(self, observations: np.ndarray) -> None:
    """Adds observations `[m, *shape]` to the statistics. Call it from Python, between steps."""
    if not self.enabled or not len(observations):
      return
    if observations.size > _LARGEST and len(observations) > 1:
      for part in np.array_split(observations, 2):
        self.update(part)
      return
    new = np.asarray(observations, np.float64).reshape(-1, *self._shape)
    count, mean, squares = (replicated.read(v)
                            for v in (self.count, self.mean, self.sum_of_squares))
    total, difference = count + len(new), new.mean(0) - mean
    squares = squares + np.square(new - new.mean(0)).sum(0) + (
        np.square(difference) * count * len(new) / total)
    replicated.assign(self.count, total)
    replicated.assign(self.mean, mean + difference * len(new) / total)
    replicated.assign(self.sum_of_squares, squares)
