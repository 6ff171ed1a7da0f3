"""The norm of averaged gradients, and clipping to it."""

import tensorflow as tf


def clip(gradients: list[tf.Tensor], clip_norm: float | None) -> tuple[list[tf.Tensor], tf.Tensor]:
  """Clips gradients to a norm: `g min(1, clip_norm / |g|)` (Pascanu et al. 2013).

  |g| is the norm of all averaged gradients together; a `clip_norm` of None clips nothing. Also
  returns |g|, float32 or float64 [], which is not finite if a gradient is not.
  """
  widest = tf.float64 if any(g.dtype == tf.float64 for g in gradients) else tf.float32
  norm = tf.linalg.global_norm([tf.cast(gradient, widest) for gradient in gradients])
  if clip_norm is not None:
    gradients = [tf.clip_by_global_norm([gradient], clip_norm, tf.cast(norm, gradient.dtype))[0][0]
                 for gradient in gradients]
  return gradients, norm
