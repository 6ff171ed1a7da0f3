"""Normalization of observations to mean 0 and standard deviation 1."""

from models.rl.networks.observation_doubts import doubts
from replicator import UsageError, replicated, step_number
from replicator.errors import above_zero

import gin
import keras
import numpy as np
import tensorflow as tf

_LARGEST = 2 ** 24  # Numbers that are added at once; in float64 they take 134 MB.
_CONSTANT = 1e-12  # At most the variance of constant numbers, due to rounding.
_OUTLIER = 100.0  # Standard deviations of an outlier.
_FARTHEST = 10.0  # Standard deviations that it counts as.
_MOST_ROUNDS = 100  # Of limiting; a few are enough for a single outlier.


@gin.configurable(denylist=["shape"])
class Normalizer(tf.Module):
  """Normalizer of observations by their running mean and variance (Chan et al. 1983).

  The statistics are variables: checkpoints save them, and they are equal on every replica. A run
  that starts from another run's networks also takes its statistics. Images have statistics per
  channel, because a pixel that was always constant may change.

  In the statistics of vectors, an outlier, a number beyond 100 standard deviations, counts as 10
  (Winsorized; Huber 1964, doi:10.1214/aoms/1177703732). So a single wrong sensor reading does not
  make all others look the same. Values of more than 1% of the observations are not outliers.

  Args:
    shape: shape of one observation; three axes mean an image.
    limit: normalized observations are clipped to `[-limit, limit]`.
    enabled: False leaves observations unchanged.

  Attributes:
    frozen: whether the statistics no longer change.
  """

  def __init__(self, shape: tuple[int, ...], limit: float = 10.0, enabled: bool = True):
    super().__init__()
    above_zero("Normalizer", limit=limit)
    self.limit = limit
    self.enabled = enabled
    self.frozen = False
    self._is_image = len(shape) == 3
    self._shape = shape[-1:] if self._is_image else shape
    self.count, self.mean, self.sum_of_squares = [
        replicated.variable(np.zeros(s), name=name)
        for name, s in (("count", ()), ("mean", self._shape),
                        ("sum_of_squares", self._shape))]
    self._said: set[str] = set()

  def restored_together(self) -> list[tf.Module]:
    """See `replicator.step.variables.together_in`."""
    return [self]

  def __call__(self, observations: tf.Tensor) -> tf.Tensor:
    """Normalizes observations: `[n, *shape]` of any dtype -> floating `[n, *shape]`.

    The mean is subtracted from float64 observations before they are cast.
    """
    floatx = keras.config.floatx()
    if not self.enabled:
      return tf.cast(observations, floatx)
    if observations.dtype != tf.float64:
      observations = tf.cast(observations, floatx)
    variance = self.sum_of_squares / tf.maximum(self.count, 1.0)
    # 1 before the first observation, and for constant numbers.
    divisor = tf.where(variance > _CONSTANT, tf.sqrt(variance), tf.ones_like(variance))
    mean, divisor = (tf.cast(x, observations.dtype) for x in (self.mean, divisor))
    normalized = tf.clip_by_value((observations - mean) / divisor, -self.limit, self.limit)
    return tf.cast(normalized, floatx)

  def taken_with_networks(self) -> dict[str, tf.Variable]:
    """Returns the variables, by name, that are taken from another run with its networks."""
    return {"count": self.count, "mean": self.mean, "sum_of_squares": self.sum_of_squares}

  def check_taken(self) -> None:
    """Raises a UsageError if networks taken from another run saw different observations.

    These statistics were taken with them.
    """
    self._check("taken from another run", has_learned=True)

  def _check(self, networks: str, has_learned: bool) -> None:
    """Raises a UsageError if trained networks would see different observations from now on."""
    if not self.enabled and replicated.read(self.count):
      raise UsageError(f"Normalizer.enabled = False: the networks {networks} were trained on "
                       "normalized observations; use True")
    if self.enabled and has_learned and not replicated.read(self.count):
      raise UsageError(f"Normalizer.enabled = True: the networks {networks} were trained on "
                       "observations that are not normalized; use False")

  def update(self, observations: np.ndarray) -> list[str]:
    """Adds observations `[m, *shape]` to the statistics. Call it from Python, between steps.

    Returns warnings about numbers that the policy cannot tell apart, each once.

    Raises:
      UsageError: it has statistics but is disabled, or is enabled but has none after some steps.
    """
    self._check("of this run", has_learned=int(step_number()) > 0)
    if not self.enabled:
      return []
    if self.frozen or not len(observations):
      return []
    if observations.size > _LARGEST and len(observations) > 1:
      return [line for part in np.array_split(observations, 2) for line in self.update(part)]
    new = np.asarray(observations, np.float64).reshape(-1, *self._shape)
    before = [replicated.read(v) for v in (self.count, self.mean, self.sum_of_squares)]
    counted = new if self._is_image else limited(before, new)
    after = added(before, counted)
    for variable, value in zip((self.count, self.mean, self.sum_of_squares), after, strict=True):
      replicated.assign(variable, value)
    if self._is_image:
      return []
    found = doubts(observations.dtype, new, counted, after[1], deviation(after))
    fresh = {what: line for what, line in found.items() if what not in self._said}
    self._said |= fresh.keys()
    return [f"warning: Normalizer: {line}" for line in fresh.values()]


def limited(before: list[np.ndarray], new: np.ndarray) -> np.ndarray:
  """Limits outliers in observations `[m, c]` to 10 standard deviations.

  The deviations are those of the observations `before`, given by count, mean and sum of squares,
  together with the limited new ones. An outlier is beyond 100 deviations. A number that would
  otherwise be constant has no outliers.
  """
  found = new
  for _ in range(_MOST_ROUNDS):
    after = added(before, found)
    mean, width = after[1], _FARTHEST * deviation(after)
    narrower = np.clip(found, mean - width, mean + width)
    if (np.abs(narrower - found) <= 1e-3 * width).all():
      break
    found = narrower
  after = added(before, found)
  width = deviation(after)
  is_outlier = (np.abs(new - after[1]) > _OUTLIER * width) & (width ** 2 > _CONSTANT)
  return np.where(is_outlier, found, new)


def added(before: list[np.ndarray], new: np.ndarray) -> list[np.ndarray]:
  """Returns count, mean and sum of squares after adding new numbers `[m, ...]`."""
  count, mean, squares = before
  total, difference = count + len(new), new.mean(0) - mean
  squares = squares + np.square(new - new.mean(0)).sum(0) + (
      np.square(difference) * count * len(new) / total)
  return [total, mean + difference * len(new) / total, squares]


def deviation(statistics: list[np.ndarray]) -> np.ndarray:
  """Returns the standard deviation, given count, mean and sum of squares."""
  count, _, squares = statistics
  return np.sqrt(squares / count)
