"""Dynamic loss scaling, which keeps the small gradients of float16 layers (`mixed_float16`)."""

from collections.abc import Sequence

from replicator.errors import UsageError
from replicator.step import context, replicated

import tensorflow as tf

_INITIAL = 2.0 ** 15
_HIGHEST = 2.0 ** 24  # Lifts the smallest float16 number to 1. More would only overflow.
_DOUBLE_AFTER = 2000  # Updates.


class LossScale(tf.Module):
  """A power of two that multiplies a loss and divides its gradients (Micikevicius et al. 2018).

  Gradients that pass through float16 layers are zero below 2^-24 and infinite above 2^16. The
  factor moves them into that range. The gradients of the variables, which are float32, are divided
  by it again without rounding. As in section 3.2 of arXiv:1710.03740, the factor doubles after
  2,000 updates in a row with finite gradients, up to 2^24. It halves, down to 1, at an update
  whose gradients are not finite; that update must then be skipped.

  A batch divided into `parts`, over replicas and micro-batches, skips the same updates as the whole
  batch: each example has the same weight in the scaled loss, and the gradient of a variable counts
  as infinite at the same size.
  """

  def __init__(self):
    super().__init__(name="loss_scale")
    self.factor = replicated.variable(_INITIAL, tf.float32, "factor")
    self.finite_updates = replicated.variable(0, tf.int64, "finite_updates")  # In a row.

  def scale(self, loss: tf.Tensor) -> tf.Tensor:
    """Scales the loss [] of one part, in float32, because a float16 loss would overflow."""
    parts = context.num_replicas() * replicated.num_microbatches()
    context.current().kept[self] = parts  # Until the next update.
    return tf.cast(loss, tf.float32) * (self.factor / parts)

  def unscale(self, gradients: list[tf.Tensor], name: str) -> list[tf.Tensor]:
    """Converts gradients of the scaled loss to those of the loss; `name` is the optimizer's.

    Raises a UsageError if no loss was scaled since the last update.
    """
    kept = context.current().kept
    if self not in kept:
      raise UsageError(f"{name}.apply: under train.precision = 'mixed_float16' small gradients "
                       "vanish unless the loss is scaled; before each apply, compute scaled = "
                       "optimizer.scale_loss(loss) inside the tape, and take "
                       "tape.gradient(scaled, variables)")
    parts = kept.pop(self)  # The next update may have another scale.
    return [gradient / tf.cast(self.factor / parts, gradient.dtype) for gradient in gradients]

  def holds(self, largest: tf.Tensor) -> tf.Tensor:
    """Returns whether float16 can hold the scaled gradients of the whole batch: bool [].

    `largest` is the largest absolute value of its gradients, float32 [].

    Checking for infinities is not enough: the gradients of each part may fit where their sum does
    not, and those of float32 layers are finite anyway. With a factor of 1, float16 need not hold
    them, because float32 layers may have gradients of that size.
    """
    return tf.logical_or(largest * self.factor <= tf.float16.max, self.factor <= 1.0)

  def adapt(self, finite: tf.Tensor) -> None:
    """Adapts the factor after an update with `finite` gradients, bool []."""
    replicated.update([self.factor, self.finite_updates], _adapt, finite)


def _adapt(copies: Sequence[tf.Variable], finite: tf.Tensor) -> None:
  factor, finite_updates = map(tf.identity, copies)
  updates = tf.where(finite, finite_updates + 1, 0)
  doubles = tf.equal(updates, _DOUBLE_AFTER)
  risen = tf.where(doubles, tf.minimum(2.0 * factor, _HIGHEST), factor)
  copies[0].assign(tf.where(finite, risen, tf.maximum(factor / 2.0, 1.0)))
  copies[1].assign(tf.where(doubles, tf.zeros_like(updates), updates))
