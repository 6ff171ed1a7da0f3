"""Latent optimization: codes move to better scores before both players learn from them.

LOGAN: Wu et al. 2019 (arXiv:1912.00953). Both losses are differentiated through the moves, which
takes second derivatives of discriminator and generator.
"""

from collections.abc import Callable

from replicator import UsageError

import gin
import tensorflow as tf

Direction = Callable[[tf.Tensor], tf.Tensor]
"""The move dz of codes for the gradients of their scores, `[n, d] -> [n, d]`."""


@gin.configurable
def natural_gradient(rate: float = 0.9, damping: float = 5.0) -> Direction:
  """rate g / (damping + |g|^2) for each row g of the gradients.

  It is the natural gradient with the Fisher matrix g g^T + damping I. The defaults are the paper's.

  Reference: equations 11 to 14.
  """
  def direction(gradients: tf.Tensor) -> tf.Tensor:
    squares = tf.reduce_sum(tf.square(gradients), 1, keepdims=True)
    return rate * gradients / (damping + squares)

  return direction


@gin.configurable
def plain_gradient(rate: float = 0.0001) -> Direction:
  """rate g for each row g of the gradients. Reference: equation 4."""
  return lambda gradients: rate * gradients


@gin.configurable
class LatentOptimization:
  """Moves codes along the gradient of their scores: `z' = clip(z + dz, -1, 1)`, `steps` times.

  Args:
    steps: how often; each costs a pass through generator and discriminator and back. The paper has
      1, and 0 leaves the codes as they are.
    direction: makes what turns gradients into moves: `natural_gradient` or `plain_gradient`.
    share: the share of the elements of a code that move, its first ones. The others keep the
      variety of samples.
    weight: of the squared length of the whole move, in the losses of both players.

  Raises:
    UsageError: `steps` is negative, or the share is not in (0, 1].
  """

  def __init__(self, steps: int = 1,
               direction: Callable[[], Direction] = natural_gradient,
               share: float = 0.5, weight: float = 300.0):
    if steps < 0:
      raise UsageError(f"LatentOptimization.steps = {steps}: must be at least 0")
    if not 0 < share <= 1:
      raise UsageError(f"LatentOptimization.share = {share}: must be above 0, and at most 1")
    self.steps = steps
    self.direction = direction()
    self.share = share
    self.weight = weight

  def __call__(self, score: Callable[[tf.Tensor], tf.Tensor], z: tf.Tensor
               ) -> tuple[tf.Tensor, tf.Tensor]:
    """Moves codes `z [n, d]`; call it inside the tape that differentiates the loss.

    Args:
      score: `z [n, d] -> [n]`, what the discriminator says of the generated images.
      z: floating [n, d], with elements in [-1, 1].

    Returns:
      The codes after all steps, [n, d], and what the move costs: the weighted mean of its squared
      length, [].

    Raises:
      UsageError: the share is no element of these codes.
    """
    moving = round(self.share * z.shape[1])
    if self.steps and not moving:
      raise UsageError(f"LatentOptimization.share = {self.share}: is no element of a code of "
                       f"length {z.shape[1]}, so nothing would move; write {1 / z.shape[1]:.2g} or "
                       "more")
    does_move = tf.cast(tf.range(z.shape[1]) < moving, z.dtype)
    start = z
    for _ in range(self.steps):
      with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(z)
        scores = score(z)
      # On any number of replicas, the gradient of the sum of this replica's scores is that of the
      # sum of all scores, by this replica's codes.
      gradients = tape.gradient(scores, z)
      z = tf.clip_by_value(z + does_move * self.direction(gradients), -1.0, 1.0)
    return z, self.weight * tf.reduce_mean(tf.reduce_sum(tf.square(z - start), 1))
