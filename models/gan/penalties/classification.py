"""ACGAN's classification loss, for the discriminator's classifier of images and samples."""

from models.gan.losses import tfgan
from models.gan.penalties.penalty import Penalty
from models.gan.penalties.scores import Scores
from replicator import UsageError
from replicator.step.optimizers.schedules import Number

import gin
import tensorflow as tf


@gin.configurable
def classification(weight: Number = 1.0, of_fakes: float = 0.0) -> Penalty:
  """Makes the penalty weight (mean -log C(label | x) + of_fakes mean -log C(label | G(z, label))).

  C is the classifier of `ACGANDiscriminator`. Reference: Odena et al. 2017 (arXiv:1610.09585),
  equation 3.

  Args:
    weight: 1 in the paper.
    of_fakes: relative weight of generated images; 1 in the paper. With 0 the classifier learns from
      real images only, so that it does not adapt to bad samples.
  """
  def measure(scores: Scores) -> tf.Tensor:
    loss = cross_entropy(scores.real_logits, scores.real_labels)
    if not of_fakes:
      return loss
    return loss + of_fakes * cross_entropy(scores.fake_logits, scores.fake_labels)

  return Penalty("classification", measure, weight)


def cross_entropy(logits: tf.Tensor | None, labels: tf.Tensor | None) -> tf.Tensor:
  """Returns the mean of -log C(label | x): `[n, num_classes], int32 [n] -> []`.

  Raises:
    UsageError: the discriminator has no classifier.
  """
  if logits is None:
    raise UsageError("classification: the discriminator returns only scores; set "
                     "GAN.discriminator = @ACGANDiscriminator, and ACGANDiscriminator.network")
  logits = tfgan.exact(logits)
  one_hot = tf.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
  return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(one_hot, logits))
