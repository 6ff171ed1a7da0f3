"""The two critics of SAC and TD3, whose lower value is used (Fujimoto et al. 2018)."""

from collections.abc import Callable, Sequence

import replicator

import tensorflow as tf

Critics = Sequence[Callable[[tf.Tensor, tf.Tensor], tf.Tensor]]
"""Networks: `[n, *shape], [n, a] -> [n, 1]`."""


def values(critics: Critics, observations: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
  """Returns the values of all critics: `[n, *shape], [n, a] -> [n, critics]`."""
  return tf.concat([critic(observations, actions) for critic in critics], 1)


def update(optimizer: replicator.Optimizer, critics: Critics, observations: tf.Tensor,
           actions: tf.Tensor, target: tf.Tensor, weight: tf.Tensor
           ) -> tuple[tf.Tensor, tf.Tensor]:
  """Updates all critics, which the optimizer owns, by weighted squared errors from target returns.

  Target and weight are [n]. Returns the loss [], and the mean absolute error of each example, [n].
  """
  def loss():
    errors = values(critics, observations, actions) - target[:, tf.newaxis]
    squares = tf.reduce_sum(tf.square(errors), 1)
    return tf.reduce_mean(weight * squares), tf.reduce_mean(tf.abs(errors), 1)

  return optimizer.minimize(loss)
