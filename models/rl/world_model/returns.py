"""Returns of imagined sequences, and their range over all replicas."""

import replicator
from replicator import replicated
from replicator.errors import from_0_to_1

import gin
import keras
import tensorflow as tf


def lambda_returns(reward: tf.Tensor, discount: tf.Tensor, value: tf.Tensor, lambda_: float
                   ) -> tf.Tensor:
  """Returns that trust values the more, the later they are: `[n, t], [n, t], [n, t] -> [n, t]`.

      R_i = r_i + d_i ((1 - lambda) v_i + lambda R_(i + 1)),    R_t = r_t + d_t v_t

  Each action has a reward r, a discount d, the factor on what follows it, and the value v of the
  state after it. Lambda is from 0, the reward and the value of the next state, to 1, all rewards.
  """
  found = [value[:, -1]]
  for i in reversed(range(reward.shape[1])):
    following = (1.0 - lambda_) * value[:, i] + lambda_ * found[-1]
    found.append(reward[:, i] + discount[:, i] * following)
  return tf.stack(found[:0:-1], 1)


@gin.configurable
class ReturnRange(tf.Module):
  """A moving average of the distance between two percentiles of the returns of all replicas.

  Advantages are divided by it, so that one weight of the entropy fits all rewards. Returns of less
  than 1 are not made larger.

  Args:
    decay: share that the average keeps at each update.
    low: the lower percentile.
    high: the upper one.

  Attributes:
    average: floatx [], initially 0.
  """

  def __init__(self, decay: float = 0.99, low: float = 5.0, high: float = 95.0):
    super().__init__()
    from_0_to_1("ReturnRange", decay=decay, low=low / 100.0, high=high / 100.0)
    self._share, self._percentiles = 1.0 - decay, (low, high)
    self.average = replicated.variable(0.0, keras.config.floatx(), "return_range")

  def update(self, returns: tf.Tensor) -> tf.Tensor:
    """Adds this replica's returns, of any shape, and gives the range [], at least 1."""
    every = tf.sort(replicator.all_concat(tf.reshape(returns, [-1])))
    low, high = (_percentile(every, q) for q in self._percentiles)
    old = replicated.before(self.average)
    change = replicated.average_change(old, high - low, self._share)
    replicated.update([self.average], lambda copies, change: copies[0].assign_add(change), change)
    return tf.maximum(old + change, 1.0)


def _percentile(ordered: tf.Tensor, q: float) -> tf.Tensor:
  """A percentile of ascending numbers, interpolated between the two nearest: `[n] -> []`."""
  place = q / 100.0 * (ordered.shape[0] - 1)
  below = int(place)
  above = min(below + 1, ordered.shape[0] - 1)
  return ordered[below] + (place - below) * (ordered[above] - ordered[below])
