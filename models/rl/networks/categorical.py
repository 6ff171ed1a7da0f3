"""Distributions of returns over fixed atoms (Bellemare et al. 2017, arXiv:1707.06887)."""

import tensorflow as tf


def atoms(lowest: float, highest: float, number: int, dtype: tf.DType) -> tf.Tensor:
  """`number` returns z_i, evenly spaced in `[lowest, highest]`: [number]."""
  return tf.cast(tf.linspace(tf.constant(lowest, tf.float64), highest, number), dtype)


def project(returns: tf.Tensor, probabilities: tf.Tensor, z: tf.Tensor) -> tf.Tensor:
  """Projects a distribution over any returns onto the atoms z.

  Every return gives its probability to the two atoms around it, more to the nearer one. A return
  beyond the ends gives all of it to the last atom (Bellemare et al. 2017, equation 7):

      p'_i = sum_j p_j max(0, 1 - |clip(r_j, z_1, z_k) - z_i| / dz)

  Args:
    returns: r `[n, j]`.
    probabilities: p `[n, j]`.
    z: evenly spaced, `[k]`.

  Returns:
    p' `[n, k]`; its rows have the sums of those of p.
  """
  clipped = tf.clip_by_value(returns, z[0], z[-1])[:, tf.newaxis, :]
  distance = tf.abs(clipped - z[:, tf.newaxis]) / (z[1] - z[0])
  return tf.linalg.matvec(tf.maximum(1.0 - distance, 0.0), probabilities)


def mean(logits: tf.Tensor, z: tf.Tensor) -> tf.Tensor:
  """The expected return: `[n, k], [k] -> [n]`."""
  return tf.linalg.matvec(tf.nn.softmax(logits), z)


def cross_entropy(target: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
  """- sum_i target_i log softmax(logits)_i: `[n, k], [n, k] -> [n]`."""
  return tf.nn.softmax_cross_entropy_with_logits(target, logits)
