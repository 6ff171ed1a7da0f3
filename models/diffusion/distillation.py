"""Distribution matching: the gradient that moves samples to where the data is denser.

Yin et al. 2023 (arXiv:2311.18828) and 2024, DMD2 (arXiv:2405.14867). The gradient of the divergence
KL(samples || data), both with noise, by a sample is the difference of two scores: that of the data,
which a teacher knows, and that of the samples, which a network learns while they change.
"""

import tensorflow as tf


def matching_gradient(x: tf.Tensor, real: tf.Tensor, fake: tf.Tensor) -> tf.Tensor:
  """The gradient by samples of their divergence from the data (2311.18828, equations 7 and 8).

  (fake - real) / mean|x - real|. The mean is that of each example, so that all levels count alike,
  and an example moves the same whatever else is in the batch. `real` and `fake` are what the
  denoisers of the data and of the samples make of the samples `x [n, ...]` with noise.
  """
  axes = list(range(1, x.shape.rank))
  return tf.math.divide_no_nan(fake - real, tf.reduce_mean(tf.abs(x - real), axes, keepdims=True))


def matching_loss(x: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
  """A loss [] whose gradient by `x` is the given one, as a mean over all numbers of x.

  Half the squared distance from a place that counts as a constant, one step down the gradient. Its
  value is half the mean square of the gradient, which need not fall while samples improve.
  """
  return 0.5 * tf.reduce_mean(tf.math.squared_difference(x, tf.stop_gradient(x - gradient)))
