"""Critic heads: how a critic's outputs describe returns, and how they are trained.

A head defines how many `outputs` the critic has for each example. From the outputs it computes the
expected return (`mean`); a `target` for `reward + discount * next return`, and `scalars` about it;
and the `losses` of each example. Its `doubts` are warnings about the means of these scalars.
"""

import math
from collections.abc import Mapping
from typing import Any

from replicator import UsageError, replicated

import gin
import keras
import tensorflow as tf

_MOST_CLIPPED = 0.1  # A larger share of targets beyond the atoms causes a warning.


@gin.configurable
class CategoricalReturns:
  """A head of logits over atoms: a distribution of returns (Bellemare et al. 2017).

  Reference: arXiv:1707.06887.

  Args:
    v_min: the first atom.
    v_max: the last atom; usually the discounted sum of the largest rewards.
    atoms: number of atoms, evenly spaced.

  Raises:
    UsageError: there are fewer than two atoms, or the last is not above the first.
  """

  def __init__(self, v_min: float = -150.0, v_max: float = 150.0, atoms: int = 51):
    if atoms < 2 or v_max <= v_min:
      raise UsageError(f"CategoricalReturns: {atoms} atoms from {v_min} to {v_max}; there must "
                       "be two or more, and v_max above v_min")
    self.v_min, self.v_max, self.outputs = v_min, v_max, atoms

  def mean(self, outputs: tf.Tensor) -> tf.Tensor:
    """Returns the expected return: `[..., atoms] -> [...]`."""
    return tf.linalg.matvec(tf.nn.softmax(outputs), self._atoms())

  def target(self, rewards: tf.Tensor, discounts: tf.Tensor, following: tf.Tensor) -> tf.Tensor:
    """Returns the target distribution on the atoms: `[n], [n], [n, atoms] -> [n, atoms]`.

    Args:
      rewards: discounted sums over n steps.
      discounts: factors on the return after those steps.
      following: the critic's outputs after those steps.
    """
    z = self._atoms()
    return project(_returns(rewards, discounts, z), tf.nn.softmax(following), z)

  def scalars(self, rewards: tf.Tensor, discounts: tf.Tensor, following: tf.Tensor
              ) -> dict[str, tf.Tensor]:
    """Returns `clipped_returns`: the fraction of the target's probability beyond the atoms, [].

    The arguments are those of `target`, which assigns this probability to the outer atoms.
    """
    z = self._atoms()
    returns = _returns(rewards, discounts, z)
    beyond = tf.cast((returns < z[0]) | (returns > z[-1]), returns.dtype)
    share = tf.reduce_sum(beyond * tf.nn.softmax(following), 1)
    return {"clipped_returns": tf.reduce_mean(share)}

  def doubts(self, scalars: Mapping[str, float], replay: Any) -> dict[str, str]:
    """Returns a warning if too much probability is clipped, and suggests wider atoms.

    The suggestion follows from the rewards in `replay`, a `Replay`.
    """
    if not (share := scalars.get("clipped_returns", 0.0)) > _MOST_CLIPPED:
      return {}
    rewards, discount = replicated.read(replay.reward), replay.discount
    low, high = min(0.0, float(rewards.min())), max(0.0, float(rewards.max()))
    remedy = "set bounds that cover all returns"
    if discount < 1.0:
      remedy = (f"rewards from {low:.4g} to {high:.4g} at Replay.discount = {discount} allow "
                f"CategoricalReturns.v_min = {low / (1.0 - discount):.4g} and "
                f"CategoricalReturns.v_max = {high / (1.0 - discount):.4g}")
    return {"clipped_returns": (
        f"clipped_returns is {share:.2g}: this fraction of the critic's targets is outside its "
        f"atoms, CategoricalReturns.v_min = {self.v_min:g} and .v_max = {self.v_max:g}, so it "
        f"cannot tell such returns apart; {remedy}")}

  def mixture(self, outputs: tf.Tensor) -> tf.Tensor:
    """Returns the mean of k distributions, as logits: `[n, k, atoms] -> [n, atoms]`."""
    return (tf.reduce_logsumexp(tf.nn.log_softmax(outputs), 1)
            - math.log(outputs.shape[1]))

  def losses(self, target: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Returns the cross-entropies: `[n, atoms], [n, atoms] -> [n]`."""
    return tf.nn.softmax_cross_entropy_with_logits(target, outputs)

  def _atoms(self) -> tf.Tensor:
    z = tf.linspace(tf.constant(self.v_min, tf.float64), self.v_max, self.outputs)
    return tf.cast(z, keras.config.floatx())


def _returns(rewards: tf.Tensor, discounts: tf.Tensor, z: tf.Tensor) -> tf.Tensor:
  """Returns the return for each atom of the next state: `[n], [n], [k] -> [n, k]`."""
  return rewards[:, tf.newaxis] + discounts[:, tf.newaxis] * z


def project(returns: tf.Tensor, probabilities: tf.Tensor, z: tf.Tensor) -> tf.Tensor:
  """Projects a distribution over any returns onto the atoms z (Bellemare et al. 2017, equation 7).

  Each return's probability is split between the two atoms around it, more to the nearer one. For a
  return beyond the ends, all of it goes to the outer atom:

      p'_i = sum_j p_j max(0, 1 - |clip(r_j, z_1, z_k) - z_i| / dz)

  The returns r and probabilities p are `[n, j]`, and z, evenly spaced, is `[k]`. The result p' is
  `[n, k]`, with the same row sums as p.
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
    """Returns the expected return: `[..., 1] -> [...]`."""
    return outputs[..., 0]

  def target(self, rewards: tf.Tensor, discounts: tf.Tensor, following: tf.Tensor) -> tf.Tensor:
    """Returns the expected return: `[n], [n], [n, 1] -> [n]`; see `CategoricalReturns.target`."""
    return rewards + discounts * self.mean(following)

  def scalars(self, rewards: tf.Tensor, discounts: tf.Tensor, following: tf.Tensor
              ) -> dict[str, tf.Tensor]:
    """Returns no scalars."""
    return {}

  def doubts(self, scalars: Mapping[str, float], replay: Any) -> dict[str, str]:
    """Returns no warnings, because it can represent all returns."""
    return {}

  def mixture(self, outputs: tf.Tensor) -> tf.Tensor:
    """Returns the mean of k returns: `[n, k, 1] -> [n, 1]`."""
    return tf.reduce_mean(outputs, 1)

  def losses(self, target: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Returns half the squared errors: `[n], [n, 1] -> [n]`.

    As priorities, they need half the usual exponent.
    """
    return 0.5 * tf.square(self.mean(outputs) - target)
