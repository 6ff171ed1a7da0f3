"""Numbers of any size: the symmetric logarithm, and a head that predicts by classification.

Hafner et al. 2023 (arXiv:2301.04104), "Mastering Diverse Domains through World Models".
"""

from replicator import UsageError
from replicator.errors import above_zero

import gin
import keras
import numpy as np
import tensorflow as tf


def symlog(x: tf.Tensor) -> tf.Tensor:
  """Returns the symmetric logarithm `sign(x) log(1 + |x|)`: any shape -> same shape."""
  return tf.sign(x) * tf.math.log1p(tf.abs(x))


def symexp(x: tf.Tensor) -> tf.Tensor:
  """Returns the inverse of `symlog`, `sign(x) (exp(|x|) - 1)`: any shape -> same shape."""
  return tf.sign(x) * tf.math.expm1(tf.abs(x))


@gin.configurable
class TwoHot:
  """A head of logits over bins, whose mean is the predicted number.

  The bins are `symexp` of evenly spaced numbers: dense around 0, with a wide range. Equal logits
  predict exactly 0.

  Args:
    limit: the last bin is `symexp(limit)`, and the first is its negative.
    bins: the number of bins, odd, so that the middle one is 0.

  Attributes:
    outputs: number of logits.

  Raises:
    UsageError: the limit is not positive, or the number of bins is not odd.
  """

  def __init__(self, limit: float = 20.0, bins: int = 255):
    above_zero("TwoHot", limit=limit)
    if bins < 3 or bins % 2 == 0:
      raise UsageError(f"TwoHot.bins = {bins}: must be an odd number above 1, such as 255")
    self.outputs = bins
    positive = np.expm1(np.linspace(0.0, limit, bins // 2 + 1)[1:])
    self._bins = np.concatenate([-positive[::-1], [0.0], positive])

  def mean(self, logits: tf.Tensor) -> tf.Tensor:
    """Returns the predicted numbers: `[..., bins] -> [...]`."""
    weighted = tf.nn.softmax(logits) * tf.constant(self._bins, keras.config.floatx())
    middle = self.outputs // 2
    # Sums pairs of opposite bins, so that equal probabilities cancel exactly.
    pairs = weighted[..., middle + 1:] + weighted[..., :middle][..., ::-1]
    return tf.reduce_sum(pairs, -1)

  def losses(self, numbers: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Returns the cross-entropies of numbers and their predictions: `[...], [..., bins] -> [...]`.

    The target distribution is on the two bins around a number, with that number as mean; beyond the
    ends, it is on the outer bin.
    """
    bins = tf.constant(self._bins, numbers.dtype)
    inside = tf.clip_by_value(tf.reshape(numbers, [-1]), bins[0], bins[-1])
    above = tf.clip_by_value(tf.searchsorted(bins, inside, "right"), 1, self.outputs - 1)
    low, high = tf.gather(bins, above - 1), tf.gather(bins, above)
    share = (inside - low) / (high - low)
    log_probability = tf.reshape(tf.nn.log_softmax(logits), [-1, self.outputs])
    of_low, of_high = (tf.gather(log_probability, place, batch_dims=1)
                       for place in (above - 1, above))
    return tf.reshape(-(1.0 - share) * of_low - share * of_high, tf.shape(numbers))
