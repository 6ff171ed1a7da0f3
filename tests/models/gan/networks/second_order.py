"""The gradient of a gradient penalty, against finite differences."""

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf


def assert_penalty_gradient(network: keras.Model, score: Callable[[tf.Tensor], tf.Tensor],
                            images: tf.Tensor) -> None:
  """The gradient of mean |d score / d image|^2 to all weights, along a random direction."""
  variables = network.trainable_variables

  def penalty():
    with tf.GradientTape() as tape:
      tape.watch(images)
      total = tf.reduce_sum(score(images))
    return tf.reduce_mean(tf.reduce_sum(tf.square(tape.gradient(total, images)), [1, 2, 3]))

  with tf.GradientTape() as tape:
    value = penalty()
  gradients = tape.gradient(value, variables)
  random = np.random.default_rng(3)
  directions = [random.normal(size=v.shape) for v in variables]
  slope = sum(np.sum(g * d) for g, d in zip(gradients, directions, strict=True) if g is not None)
  before = [v.numpy() for v in variables]
  values = []
  for step in (1e-6, -1e-6):
    for v, start, direction in zip(variables, before, directions, strict=True):
      v.assign(start + step * direction)
    values.append(float(penalty()))
  for v, start in zip(variables, before, strict=True):
    v.assign(start)
  assert abs(slope) > 1e-3
  np.testing.assert_allclose(slope, (values[0] - values[1]) / 2e-6, rtol=1e-5)
