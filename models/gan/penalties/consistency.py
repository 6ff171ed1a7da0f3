"""Consistency regularization: an augmentation should not change a score."""

from collections.abc import Callable

from models.gan.penalties.penalty import Penalty
from models.gan.penalties.scores import Scores
from models.vision.augmentation.flip_and_shift import FlipAndShift
from replicator.step.optimizers.schedules import Number

import gin
import tensorflow as tf


@gin.configurable
def consistency(weight: Number = 10.0, of_fakes: float = 0.0, every: int = 1,
                augment: Callable[[], Callable[[tf.Tensor], tf.Tensor]] = FlipAndShift) -> Penalty:
  """Makes the penalty weight (mean (D(x) - D(T(x)))^2 + of_fakes mean (D(G(z)) - D(T(G(z))))^2).

  Args:
    weight: 10 in both papers.
    of_fakes: relative weight of generated images: 0 is CR (Zhang et al. 2020, arXiv:1910.12027,
      equation 2), and 1 is bCR (Zhao et al. 2021, arXiv:2002.04724, equations 2 and 3).
    every: steps between computations of the penalty; see `Penalty`.
    augment: makes the augmentation T.

  Both scores of an image must come from the same function, so batch normalization is rejected.
  """
  transform = augment()

  def prepare(scores: Scores) -> tuple[tf.Tensor, ...]:
    return tuple(map(transform, [scores.real_seen, *([scores.fake_seen] if of_fakes else [])]))

  def measure(scores: Scores, real: tf.Tensor, fake: tf.Tensor | None = None) -> tf.Tensor:
    change = tf.reduce_mean(tf.math.squared_difference(
        scores.again(real, scores.real_labels), scores.real))
    if fake is None:
      return change
    return change + of_fakes * tf.reduce_mean(tf.math.squared_difference(
        scores.again(fake, scores.fake_labels), scores.fake))

  return Penalty("consistency", measure, weight, every, prepare)
