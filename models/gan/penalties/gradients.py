"""Penalties on the gradients of the discriminator's scores with respect to its images.

They are differentiated with the loss, which needs second derivatives of the discriminator.
"""

from models.gan.penalties.penalty import Penalty
from models.gan.penalties.scores import Scores
from replicator import UsageError, random
from replicator.step.optimizers.schedules import Number

import gin
import tensorflow as tf


@gin.configurable
def r1(gamma: Number = 10.0, every: int = 1) -> Penalty:
  """Makes the penalty gamma / 2 mean |grad D(x)|^2 over real images, each norm a sum over pixels.

  Args:
    gamma: the weight, a number or a schedule. A `reg_param` of 10 in the authors' code is a gamma
      of 20 here.
    every: steps between computations of the penalty; see `Penalty`.

  Reference: Mescheder et al. 2018 (arXiv:1801.04406), equation 9.
  """
  return Penalty("r1", lambda scores: _half_mean_square(scores.gradients[0]), gamma, every)


@gin.configurable
def r2(gamma: Number = 10.0, every: int = 1) -> Penalty:
  """Makes the penalty gamma / 2 mean |grad D(G(z))|^2 over generated images; see `r1`.

  If `r1` is also used, the gradients are computed once for both.

  Reference: Mescheder et al. 2018 (arXiv:1801.04406), equation 10.
  """
  return Penalty("r2", lambda scores: _half_mean_square(scores.gradients[1]), gamma, every)


@gin.configurable
def wgan_gp(weight: Number = 10.0, every: int = 1) -> Penalty:
  """Makes the penalty weight mean (|grad D(x^)| - 1)^2 at x^ between real and generated images.

  x^ = u x + (1 - u) G(z), with one u ~ U(0, 1) for each pair of images, after augmentation. The
  label is that of the real image. Where the gradient is zero, the norm is treated as constant.

  Args:
    weight: the paper's lambda, a number or a schedule.
    every: steps between computations of the penalty; see `Penalty`.

  Reference: Gulrajani et al. 2017 (arXiv:1704.00028), equation 3.
  """
  return Penalty("wgan_gp", _distance_from_1, weight, every, prepare=_points_between)


def _half_mean_square(gradients: tf.Tensor) -> tf.Tensor:
  return tf.reduce_mean(_square_norms(gradients)) / 2


def _points_between(scores: Scores) -> tuple[tf.Tensor]:
  real, fake = scores.real_seen, scores.fake_seen
  if real.shape != fake.shape:
    raise UsageError(f"wgan_gp: {real.shape[0]} real and {fake.shape[0]} generated images do not "
                     "make pairs; pass equal numbers of both")
  share = random.uniform("wgan_gp", [real.shape[0], 1, 1, 1], dtype=real.dtype)
  return (share * real + (1 - share) * fake,)


def _distance_from_1(scores: Scores, points: tf.Tensor) -> tf.Tensor:
  squares = _square_norms(scores.gradient_at(points, scores.real_labels))
  # The root's derivative is infinite at 0, and `tf.where` alone would still multiply by it.
  is_positive = squares > 0
  norms = tf.where(is_positive, tf.sqrt(tf.where(is_positive, squares, 1.0)), 0.0)
  return tf.reduce_mean(tf.math.squared_difference(norms, 1.0))


def _square_norms(gradients: tf.Tensor) -> tf.Tensor:
  """Returns squared norms: `[n, h, w, c] -> [n]`, in at least float32."""
  exact = gradients if gradients.dtype.size >= 4 else tf.cast(gradients, tf.float32)
  return tf.reduce_sum(tf.square(exact), [1, 2, 3])
