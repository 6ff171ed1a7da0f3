"""Distribution matching: the gradient that moves samples to where the data is denser.

Yin et al. 2023 (arXiv:2311.18828) and 2024, DMD2 (arXiv:2405.14867). With noise added to both, the
gradient of KL(samples || data) with respect to a sample is the difference of two scores: that of
the samples, which a network tracks as they change, minus that of the data, from a teacher.
"""

import tensorflow as tf


def matching_gradient(x: tf.Tensor, real: tf.Tensor, fake: tf.Tensor) -> tf.Tensor:
  """Returns the divergence's gradient with respect to the samples (2311.18828, eqs. 7 and 8).

  (fake - real) / mean|x - real|. The mean is over each example, so that all noise levels have the
  same weight, and other examples in the batch have no effect. `real` and `fake` are the outputs of
  the denoisers of the data and of the samples, given the noisy samples `x [n, ...]`.
  """
  axes = list(range(1, x.shape.rank))
  return tf.math.divide_no_nan(fake - real, tf.reduce_mean(tf.abs(x - real), axes, keepdims=True))


def matching_loss(x: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
  """Returns a loss [] whose gradient with respect to `x` is `gradient` / (number of elements).

  It is half the mean squared distance to the constant `x - gradient`. Its value, half the mean
  square of the gradient, may not fall while samples improve.
  """
  return 0.5 * tf.reduce_mean(tf.math.squared_difference(x, tf.stop_gradient(x - gradient)))
