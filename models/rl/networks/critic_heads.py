"""Critic heads: how a critic's outputs describe returns, and how they are trained.

A head says how many `outputs` the critic has for each example. It takes these for its `mean`, the
expected return; for a `target`, which describes `reward + discount * following return`; and for the
`losses` of each example.
"""

import math

from replicator import UsageError

import gin
import keras
import tensorflow as tf


@gin.configurable
class CategoricalReturns:
  """A head of logits over atoms: a distribution of returns (Bellemare et al. 2017).

  Reference: arXiv:1707.06887.

  Args:
    lowest: the first atom.
    highest: the last atom; as a rule the discounted sum of the largest rewards.
    atoms: number of atoms, evenly spaced.

  Raises:
    UsageError: there are fewer than two atoms, or the last is not above the first.
  """

  def __init__(self, lowest: float = -150.0, highest: float = 150.0, atoms: int = 51):
    if atoms < 2 or highest <= lowest:
      raise UsageError(f"CategoricalReturns: {atoms} atoms from {lowest} to {highest}; there must "
                       "be two or more, and highest above lowest")
    self.lowest, self.highest, self.outputs = lowest, highest, atoms

  def mean(self, outputs: tf.Tensor) -> tf.Tensor:
    """The expected return: `[..., atoms] -> [...]`."""
    return tf.linalg.matvec(tf.nn.softmax(outputs), self._atoms())

  def target(self, rewards: tf.Tensor, discounts: tf.Tensor, following: tf.Tensor) -> tf.Tensor:
    """The distribution on the atoms: `[n], [n], [n, atoms] -> [n, atoms]`.

    Args:
      rewards: discounted sums over n steps.
      discounts: factors on what follows those steps.
      following: the critic's outputs after those steps.
    """
    z = self._atoms()
    returns = rewards[:, tf.newaxis] + discounts[:, tf.newaxis] * z
    return project(returns, tf.nn.softmax(following), z)

  def mixture(self, outputs: tf.Tensor) -> tf.Tensor:
    """The mean of k distributions, as logits: `[n, k, atoms] -> [n, atoms]`."""
    return (tf.reduce_logsumexp(tf.nn.log_softmax(outputs), 1)
            - math.log(outputs.shape[1]))

  def losses(self, target: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """The cross-entropies: `[n, atoms], [n, atoms] -> [n]`."""
    return tf.nn.softmax_cross_entropy_with_logits(target, outputs)

  def _atoms(self) -> tf.Tensor:
    z = tf.linspace(tf.constant(self.lowest, tf.float64), self.highest, self.outputs)
    return tf.cast(z, keras.config.floatx())


def project(returns: tf.Tensor, probabilities: tf.Tensor, z: tf.Tensor) -> tf.Tensor:
  """Projects a distribution over any returns onto the atoms z (Bellemare et al. 2017, equation 7).

  Every return gives its probability to the two atoms around it, more to the nearer one. A return
  beyond the ends gives all of it to the last atom:

      p'_i = sum_j p_j max(0, 1 - |clip(r_j, z_1, z_k) - z_i| / dz)

  The returns r and probabilities p are `[n, j]`, and z, evenly spaced, is `[k]`. The result p' is
  `[n, k]`; its rows have the sums of those of p.
  """
  clipped = tf.clip_by_value(returns, z[0], z[-1])[:, tf.newaxis, :]
  distance = tf.abs(clipped - z[:, tf.newaxis]) / (z[1] - z[0])
  return tf.linalg.matvec(tf.maximum(1.0 - distance, 0.0), probabilities)


@gin.configurable
class ExpectedReturns:
  """A head of one number, the expected return: DDPG's critic (Lillicrap et al. 2016).

  Reference: arXiv:1509.02971.
  """

  outputs = 1

  def mean(self, outputs: tf.Tensor) -> tf.Tensor:
    """The expected return: `[..., 1] -> [...]`."""
    return outputs[..., 0]

  def target(self, rewards: tf.Tensor, discounts: tf.Tensor, following: tf.Tensor) -> tf.Tensor:
    """The expected return: `[n], [n], [n, 1] -> [n]`, of the arguments of `CategoricalReturns`."""
    return rewards + discounts * self.mean(following)

  def mixture(self, outputs: tf.Tensor) -> tf.Tensor:
    """The mean of k returns: `[n, k, 1] -> [n, 1]`."""
    return tf.reduce_mean(outputs, 1)

  def losses(self, target: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Half the squared errors: `[n], [n, 1] -> [n]`.

    As priorities they need half the usual exponent.
    """
    return 0.5 * tf.square(self.mean(outputs) - target)
