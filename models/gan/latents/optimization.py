"""Latent optimization: latents are improved before each update of either network.

LOGAN: Wu et al. 2019 (arXiv:1912.00953). Both losses are differentiated through the latents'
updates, which needs second derivatives of discriminator and generator.
"""

from collections.abc import Callable

from replicator import UsageError

import gin
import tensorflow as tf

Direction = Callable[[tf.Tensor], tf.Tensor]
"""Maps gradients of latents' scores to their update dz, `[n, d] -> [n, d]`."""


@gin.configurable
def natural_gradient(rate: float = 0.9, damping: float = 5.0) -> Direction:
  """Makes the direction `rate g / (damping + |g|^2)` for each row g of the gradients.

  It is the natural gradient with the Fisher matrix g g^T + damping I. The defaults are the paper's.

  Reference: equations 11 to 14.
  """
  def direction(gradients: tf.Tensor) -> tf.Tensor:
    squares = tf.reduce_sum(tf.square(gradients), 1, keepdims=True)
    return rate * gradients / (damping + squares)

  return direction


@gin.configurable
def plain_gradient(rate: float = 0.0001) -> Direction:
  """Makes the direction `rate g` for each row g of the gradients. Reference: equation 4."""
  return lambda gradients: rate * gradients


@gin.configurable
class LatentOptimization:
  """Gradient ascent of latents on their scores: `z' = clip(z + dz, -1, 1)`, `steps` times.

  Args:
    steps: number of steps; each costs a forward and backward pass through generator and
      discriminator. The paper uses 1; 0 disables the optimization.
    direction: makes the function from gradients to dz: `natural_gradient` or `plain_gradient`.
    fraction: fraction of the elements of a latent to optimize, from the first. The others preserve
      the variety of samples.
    weight: weight of the squared length of the total change, in the losses of both networks.

  Raises:
    UsageError: `steps` is negative, or the fraction is not in (0, 1].
  """

  def __init__(self, steps: int = 1,
               direction: Callable[[], Direction] = natural_gradient,
               fraction: float = 0.5, weight: float = 300.0):
    if steps < 0:
      raise UsageError(f"LatentOptimization.steps = {steps}: must be at least 0")
    if not 0 < fraction <= 1:
      raise UsageError(f"LatentOptimization.fraction = {fraction}: must be above 0, and at most 1")
    self.steps = steps
    self.direction = direction()
    self.fraction = fraction
    self.weight = weight

  def __call__(self, score: Callable[[tf.Tensor], tf.Tensor], z: tf.Tensor
               ) -> tuple[tf.Tensor, tf.Tensor]:
    """Optimizes latents `z [n, d]`; call it inside the tape that differentiates the loss.

    Args:
      score: `z [n, d] -> [n]`, the discriminator's scores of the generated images.
      z: floating [n, d], with elements in [-1, 1].

    Returns:
      The optimized latents, [n, d], and their cost: the weighted mean squared length of the change,
      [].

    Raises:
      UsageError: the fraction is less than one element of a latent.
    """
    moving = round(self.fraction * z.shape[1])
    if self.steps and not moving:
      raise UsageError(f"LatentOptimization.fraction = {self.fraction}: is less than one element "
                       f"of a latent of length {z.shape[1]}, so nothing would move; use "
                       f"{1 / z.shape[1]:.2g} or more")
    does_move = tf.cast(tf.range(z.shape[1]) < moving, z.dtype)
    start = z
    for _ in range(self.steps):
      with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(z)
        scores = score(z)
      # For this replica's latents, the sum of its own scores has the same gradient as the sum of
      # all replicas' scores.
      gradients = tape.gradient(scores, z)
      z = tf.clip_by_value(z + does_move * self.direction(gradients), -1.0, 1.0)
    return z, self.weight * tf.reduce_mean(tf.reduce_sum(tf.square(z - start), 1))
