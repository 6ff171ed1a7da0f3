"""Losses of two views of each image, on the examples of all replicas.

Each is called with the projections of both views, `[n, d]` of this replica's n images. Comparisons
across the batch are across the batches of all replicas, by differentiable collectives. So the
gradient, averaged over the replicas, is that of one replica with the whole batch;
`benchmarks/self_supervision_gradients.py` measures it.
"""

from typing import Protocol

import replicator
from replicator.errors import above_zero
from replicator.step import replicated
from replicator.step.layers.batch_norm import batch_normalized

import gin
import keras
import tensorflow as tf

Pair = tuple[tf.Tensor, tf.Tensor]
"""The projections of the first and of the second views of n images, each `[n, d]`."""


class SelfSupervisedLoss(Protocol):
  """The interface of a loss for `experiments.self_supervision`."""

  predicts: bool  # Whether a predictor transforms the projections, but not the targets.
  has_teacher: bool  # Whether the targets come from a teacher, the network with averaged weights.
  # d, if projections are similarities to this many learned directions; 0 if not, and d is free.
  prototypes: int

  def __call__(self, views: Pair, targets: Pair) -> tf.Tensor:
    """Returns the loss [], from the projections of the network and those of the teacher.

    Without a teacher, both are the same.
    """
    ...


@gin.configurable
class SimCLR:
  """Contrastive loss between views (Chen et al. 2020, arXiv:2002.05709, equation 1).

  For each of the 2 N views i, whose other view is j, with the cosine similarity s,

      -log(exp(s(i, j) / temperature) / sum_{k != i} exp(s(i, k) / temperature))

  Args:
    temperature: smaller values emphasize the most similar views.
  """

  predicts, has_teacher, prototypes = False, False, 0

  def __init__(self, temperature: float = 0.5):
    above_zero("SimCLR", temperature=temperature)
    self.temperature = temperature

  def __call__(self, views: Pair, targets: Pair) -> tf.Tensor:
    """Returns the mean over this replica's views, compared with those of all replicas."""
    own = [tf.math.l2_normalize(view, 1) for view in views]
    all_views = replicator.all_concat(own)
    n = own[0].shape[0]
    places = replicator.replica_id() * n + tf.range(n)  # Rows of this replica's images among all.
    is_itself = tf.one_hot(places, all_views[0].shape[0], on_value=True, off_value=False,
                           dtype=tf.bool)
    losses = []
    for view, same, other in zip(own, all_views, reversed(all_views), strict=True):
      to_other, to_same = (tf.matmul(view, x, transpose_b=True) / self.temperature
                           for x in (other, same))
      to_same = tf.where(is_itself, to_same.dtype.min, to_same)
      losses.append(tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(
          places, tf.concat([to_other, to_same], 1))))
    return tf.add_n(losses) / 2


@gin.configurable
class BYOL:
  """Prediction of the teacher's other view (Grill et al. 2020, arXiv:2006.07733, equation 2).

  The squared distance of normalized vectors, `2 - 2 cos`, from each view to the other's target. It
  does not compare different images; only the networks' batch norms depend on them.
  """

  predicts, has_teacher, prototypes = True, True, 0

  def __call__(self, views: Pair, targets: Pair) -> tf.Tensor:
    """Returns the mean over the images of this replica, of the sum for both views."""
    return tf.add_n([
        2 - 2 * tf.reduce_mean(tf.reduce_sum(
            tf.math.l2_normalize(view, 1)
            * tf.stop_gradient(tf.math.l2_normalize(target, 1)), 1))
        for view, target in zip(views, reversed(targets), strict=True)])


@gin.configurable
class BarlowTwins:
  """Redundancy reduction (Zbontar et al. 2021, arXiv:2103.03230, equation 1).

      sum_i (1 - c_ii)^2 + redundancy sum_{i != j} c_ij^2

  where c `[d, d]` is the cross-correlation of the features of the two views.

  Args:
    redundancy: the weight of the correlations of different features, "lambda" in the paper.
  """

  predicts, has_teacher, prototypes = False, False, 0

  def __init__(self, redundancy: float = 0.005):
    self.redundancy = redundancy

  def __call__(self, views: Pair, targets: Pair) -> tf.Tensor:
    """Returns the loss of the images of all replicas."""
    n, d = views[0].shape
    ones = tf.ones([d], views[0].dtype)
    first, second = (batch_normalized(view, ones, 0 * ones, 1e-5)[0] for view in views)
    c = replicator.all_mean(tf.matmul(first, second, transpose_a=True) / n)
    return (tf.reduce_sum(tf.square(1 - tf.linalg.diag_part(c)))
            + self.redundancy * tf.reduce_sum(tf.square(_off_diagonal(c))))


@gin.configurable
class VICReg:
  """Variance, invariance and covariance terms (Bardes et al. 2021, arXiv:2105.04906, algorithm 1).

      invariance mean (z - z')^2 + sum over both views of
      variance mean_i max(0, 1 - sqrt(c_ii + 1e-4)) + covariance / d sum_{i != j} c_ij^2

  with the covariances c `[d, d]` of a view, divided by N - 1. The authors' code halves the variance
  term, as `variance = 12.5` does.
  """

  predicts, has_teacher, prototypes = False, False, 0

  def __init__(self, invariance: float = 25.0, variance: float = 25.0, covariance: float = 1.0):
    self.invariance = invariance
    self.variance = variance
    self.covariance = covariance

  def __call__(self, views: Pair, targets: Pair) -> tf.Tensor:
    """Returns the loss: means over this replica's images, and moments over all replicas'."""
    n, d = views[0].shape
    total = n * replicator.num_replicas()
    means = replicator.all_mean([tf.reduce_mean(view, 0) for view in views])
    centered = [view - mean for view, mean in zip(views, means, strict=True)]
    covariances = replicator.all_sum(
        [tf.matmul(x, x, transpose_a=True) / (total - 1) for x in centered])
    loss = self.invariance * tf.reduce_mean(tf.math.squared_difference(*views))
    for c in covariances:
      deviations = tf.sqrt(tf.linalg.diag_part(c) + 1e-4)
      loss += self.variance * tf.reduce_mean(tf.nn.relu(1 - deviations))
      loss += self.covariance / d * tf.reduce_sum(tf.square(_off_diagonal(c)))
    return loss


@gin.configurable
class DINO(tf.Module):
  """Prediction of the teacher's classes (Caron et al. 2021, arXiv:2104.14294, algorithm 1).

  The cross-entropy between the network's classes for one view and the teacher's for the other,
  which are centered and sharpened: softmax((t - center) / teacher_temperature). The center is a
  moving average of the mean of t over all replicas; each step uses the previous center. There are
  two views; the paper also has small views for the network only, and freezes the last layer in the
  first epoch.

  Args:
    prototypes: the number of classes.
    temperature: temperature of the network's classes.
    teacher_temperature: temperature of the teacher's classes, a lower one.
    center_momentum: decay of the moving average of the center.
  """

  predicts, has_teacher = False, True

  def __init__(self, prototypes: int = 1024, temperature: float = 0.1,
               teacher_temperature: float = 0.04, center_momentum: float = 0.9):
    super().__init__()
    above_zero("DINO", prototypes=prototypes, temperature=temperature,
               teacher_temperature=teacher_temperature)
    self.prototypes = prototypes
    self.temperature = temperature
    self.teacher_temperature = teacher_temperature
    self.center_momentum = center_momentum
    self.center = replicated.variable(tf.zeros([prototypes], keras.config.floatx()), name="center")

  def __call__(self, views: Pair, targets: Pair) -> tf.Tensor:
    """Returns the mean over this replica's images and both views; updates the center."""
    center = replicated.before(self.center)
    losses = [
        tf.nn.softmax_cross_entropy_with_logits(
            tf.stop_gradient(tf.nn.softmax((target - center) / self.teacher_temperature)),
            view / self.temperature)
        for view, target in zip(views, reversed(targets), strict=True)]
    mean = replicator.all_mean(tf.reduce_mean(tf.stop_gradient(tf.stack(targets)), [0, 1]))
    change = replicated.average_change(center, mean, 1 - self.center_momentum)
    replicated.update([self.center], lambda copies, change: copies[0].assign_add(change), change)
    return tf.reduce_mean(tf.stack(losses))


def _off_diagonal(x: tf.Tensor) -> tf.Tensor:
  return tf.linalg.set_diag(x, tf.zeros_like(x[0]))
