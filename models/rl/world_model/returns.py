"""Returns of imagined sequences, and their range over all replicas."""

import replicator
from replicator import replicated
from replicator.errors import from_0_to_1

import gin
import keras
import tensorflow as tf


def lambda_returns(reward: tf.Tensor, discount: tf.Tensor, value: tf.Tensor, lambda_: float
                   ) -> tf.Tensor:
  """Computes lambda returns: `[n, t], [n, t], [n, t] -> [n, t]`.

      R_i = r_i + d_i ((1 - lambda) v_i + lambda R_(i + 1)),    R_t = r_t + d_t v_t

  Each action has a reward r, a discount d for the following return, and the value v of the next
  state. With lambda 0, R is the reward plus the next state's value; with 1, it uses all rewards.
  """
  found = [value[:, -1]]
  for i in reversed(range(reward.shape[1])):
    following = (1.0 - lambda_) * value[:, i] + lambda_ * found[-1]
    found.append(reward[:, i] + discount[:, i] * following)
  return tf.stack(found[:0:-1], 1)


@gin.configurable
class ReturnRange(tf.Module):
  """A moving average of the range between two percentiles of the returns of all replicas.

  Advantages are divided by it, so that one entropy coefficient suits all reward scales. The range
  is at least 1, so that small returns are not scaled up.

  Args:
    decay: decay of the moving average.
    low: the lower percentile.
    high: the upper percentile.

  Attributes:
    average: floatx [], initially 0.
  """

  def __init__(self, decay: float = 0.99, low: float = 5.0, high: float = 95.0):
    super().__init__()
    from_0_to_1("ReturnRange", decay=decay, low=low / 100.0, high=high / 100.0)
    self._share, self._percentiles = 1.0 - decay, (low, high)
    self.average = replicated.variable(0.0, keras.config.floatx(), "return_range")

  def update(self, returns: tf.Tensor) -> tf.Tensor:
    """Adds this replica's returns, of any shape; returns the range [], at least 1."""
    every = tf.sort(replicator.all_concat(tf.reshape(returns, [-1])))
    low, high = (_percentile(every, q) for q in self._percentiles)
    old = replicated.before(self.average)
    change = replicated.average_change(old, high - low, self._share)
    replicated.update([self.average], lambda copies, change: copies[0].assign_add(change), change)
    return tf.maximum(old + change, 1.0)


def _percentile(ordered: tf.Tensor, q: float) -> tf.Tensor:
  """Returns a percentile of ascending numbers, linearly interpolated: `[n] -> []`."""
  place = q / 100.0 * (ordered.shape[0] - 1)
  below = int(place)
  above = min(below + 1, ordered.shape[0] - 1)
  return ordered[below] + (place - below) * (ordered[above] - ordered[below])
