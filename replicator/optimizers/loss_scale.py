"""Dynamic loss scaling, which keeps the small gradients of float16 layers (`mixed_float16`)."""

import keras
import tensorflow as tf

_INITIAL = 2.0 ** 15
_HIGHEST = 2.0 ** 24  # Lifts the smallest float16 number to 1; further up, overflows only cost.
_DOUBLE_AFTER = 2000  # Updates.


class LossScale(tf.Module):
  """A power of two that multiplies a loss and divides its gradients (Micikevicius et al. 2018).

  What float16 layers pass back is zero below 2^-24 and infinite above 2^16. A multiple of it
  fits between; the gradients of the variables, which are float32, are divided again, without
  rounding. Section 3.2 of arXiv:1710.03740: the factor is doubled after 2,000 updates in a row
  with finite gradients and halved (down to 1) at one without, which must then be skipped.

  Attributes:
    factor: float32 [].
    finite_updates: int64 [], how many of the latest updates in a row had finite gradients.
  """

  def __init__(self):
    super().__init__(name="loss_scale")
    self.factor = _scalar(_INITIAL, "float32", "factor")
    self.finite_updates = _scalar(0, "int64", "finite_updates")

  def scale(self, loss: tf.Tensor) -> tf.Tensor:
    """The loss times the factor, in float32: a float16 loss would overflow."""
    return tf.cast(loss, tf.float32) * self.factor.value

  def unscale(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
    """The gradients of the loss, from those of the scaled one."""
    return [gradient / tf.cast(self.factor.value, gradient.dtype) for gradient in gradients]

  def adapt(self, finite: tf.Tensor) -> None:
    """Changes the factor after an update whose gradients were finite or not (bool []).

    Called from across replicas.
    """
    updates = tf.where(finite, self.finite_updates.value + 1, 0)
    doubles = tf.equal(updates, _DOUBLE_AFTER)
    factor = tf.convert_to_tensor(self.factor.value)
    risen = tf.where(doubles, tf.minimum(2.0 * factor, _HIGHEST), factor)
    self.factor.assign(tf.where(finite, risen, tf.maximum(factor / 2.0, 1.0)))
    self.finite_updates.assign(tf.where(doubles, tf.zeros_like(updates), updates))


def _scalar(value: float, dtype: str, name: str) -> keras.Variable:
  return keras.Variable(value, dtype=dtype, trainable=False, autocast=False, name=name,
                        aggregation="only_first_replica")
