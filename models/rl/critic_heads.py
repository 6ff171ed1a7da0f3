"""What a critic's outputs say of returns: a distribution of them, or their expectation."""

from typing import Protocol

import gin
import keras
import tensorflow as tf

from models.rl import categorical
from replicator import UsageError


class CriticHead(Protocol):
  """How the outputs of a critic are read, and trained."""

  outputs: int

  def mean(self, outputs: tf.Tensor) -> tf.Tensor:
    """The expected return: `[n, outputs] -> [n]`."""

  def target(self, rewards: tf.Tensor, discounts: tf.Tensor, following: tf.Tensor) -> tf.Tensor:
    """What is to be learned: of `reward + discount * the return that follows`.

    Args:
      rewards: of n steps, `[n]`.
      discounts: of what follows them, `[n]`.
      following: a critic's outputs there, `[n, outputs]`.
    """

  def losses(self, target: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Of each example, for a target and a critic's outputs: `[n]`."""


@gin.configurable
class CategoricalReturns:
  """Logits over atoms: the critic of Bellemare et al. 2017 (arXiv:1707.06887).

  Args:
    lowest: the first atom.
    highest: the last one; rule: the discounted sum of the largest rewards.
    atoms: how many, evenly spaced.

  Raises:
    UsageError: fewer than two atoms, or the last not above the first.
  """

  def __init__(self, lowest: float = -150.0, highest: float = 150.0, atoms: int = 51):
    if atoms < 2 or highest <= lowest:
      raise UsageError(f"CategoricalReturns: {atoms} atoms from {lowest} to {highest}; there must "
                       "be two or more, and highest above lowest")
    self.lowest, self.highest, self.outputs = lowest, highest, atoms

  def mean(self, outputs: tf.Tensor) -> tf.Tensor:
    """See `CriticHead`."""
    return categorical.mean(outputs, self._atoms())

  def target(self, rewards: tf.Tensor, discounts: tf.Tensor, following: tf.Tensor) -> tf.Tensor:
    """The distribution, on the atoms: `[n], [n], [n, atoms] -> [n, atoms]`."""
    z = self._atoms()
    returns = rewards[:, tf.newaxis] + discounts[:, tf.newaxis] * z
    return categorical.project(returns, tf.nn.softmax(following), z)

  def losses(self, target: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Cross-entropies."""
    return categorical.cross_entropy(target, outputs)

  def _atoms(self) -> tf.Tensor:
    return categorical.atoms(self.lowest, self.highest, self.outputs, keras.config.floatx())


@gin.configurable
class ExpectedReturns:
  """The expectation alone: the critic of DDPG (Lillicrap et al. 2016, arXiv:1509.02971)."""

  outputs = 1

  def mean(self, outputs: tf.Tensor) -> tf.Tensor:
    """See `CriticHead`."""
    return outputs[:, 0]

  def target(self, rewards: tf.Tensor, discounts: tf.Tensor, following: tf.Tensor) -> tf.Tensor:
    """The expected return: `[n], [n], [n, 1] -> [n]`."""
    return rewards + discounts * self.mean(following)

  def losses(self, target: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Half the squares of the errors; as priorities they ask for half the usual exponent."""
    return 0.5 * tf.square(self.mean(outputs) - target)
