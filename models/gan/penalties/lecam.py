"""LeCam regularization, for training on little data: Tseng et al. 2021 (arXiv:2104.03310)."""

import replicator
from models.gan.penalties.penalty import Penalty
from models.gan.penalties.scores import Scores
from replicator import UsageError, replicated
from replicator.step.optimizers.schedules import Number

import gin
import keras
import tensorflow as tf


@gin.configurable
def lecam(weight: Number = 0.3, decay: float = 0.99, start: int = 1000) -> Penalty:
  """Makes the penalty weight (mean relu(D(x) - a_fake)^2 + mean relu(a_real - D(G(z)))^2).

  a_real and a_fake are moving averages of the mean scores over the global batch. The paper has no
  relu, but its authors' code does. Their averages include the current batch; ours do not, so that
  the penalty is the same for any number of micro-batches.

  Args:
    weight: 0.3 for the hinge loss with BigGAN, 3e-7 for StyleGAN2.
    decay: decay of the moving averages.
    start: first step with the penalty; until then the averages settle.

  Raises:
    UsageError: the decay is not in [0, 1).

  Reference: equations 3 and 4.
  """
  if not 0 <= decay < 1:
    raise UsageError(f"lecam.decay = {decay}: must be at least 0 and below 1, such as 0.99")

  def measure(scores: Scores, of_real: tf.Tensor, of_fake: tf.Tensor) -> tf.Tensor:
    value = (tf.reduce_mean(tf.square(tf.nn.relu(scores.real - of_fake)))
             + tf.reduce_mean(tf.square(tf.nn.relu(of_real - scores.fake))))
    return tf.where(replicator.step_number() >= start, value, tf.zeros_like(value))

  return Penalty("lecam", measure, weight, prepare=_Anchors(decay))


class _Anchors(tf.Module):
  """The moving averages of the scores of real and of generated images, equal on all replicas."""

  def __init__(self, decay: float):
    super().__init__(name="anchors")
    self.decay = decay
    self.averages = replicated.variable([0.0, 0.0], keras.config.floatx(), "averages")

  def __call__(self, scores: Scores) -> tuple[tf.Tensor, ...]:
    """Returns the averages [] before this batch, and updates them with its scores."""
    before = replicated.before(self.averages)
    means = replicator.all_mean(tf.stack(
        [tf.reduce_mean(tf.stop_gradient(x)) for x in (scores.real, scores.fake)]))
    means = tf.where(tf.math.is_finite(means), tf.cast(means, before.dtype), before)
    change = replicated.average_change(before, means, 1 - self.decay)
    replicated.update([self.averages], lambda copies, x: copies[0].assign_add(x), change)
    return tuple(tf.unstack(tf.cast(before, scores.real.dtype)))
