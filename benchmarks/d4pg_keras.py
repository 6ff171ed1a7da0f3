"""The learner of `benchmarks.d4pg_step` in plain Keras 3, with a replay in NumPy.

It uses `keras.Sequential`, Keras Adam and one `tf.function`, and nothing of this project.
"""

from benchmarks import d4pg_problem as problem
from benchmarks.d4pg_problem import ATOMS, BATCH_SIZE, Batch

import keras
import numpy as np
import tensorflow as tf
from keras import layers


class Learner:
  """Both networks with their targets, and a compiled update."""

  def __init__(self):
    policy, critic = problem.policy_weights(), problem.critic_weights()
    self.policy, self.target_policy = (_policy(policy) for _ in range(2))
    self.critic, self.target_critic = (_critic(critic) for _ in range(2))
    self._optimizers = [
        keras.optimizers.Adam(problem.LEARNING_RATE, epsilon=problem.ADAM_EPSILON,
                              global_clipnorm=problem.CLIP_NORM) for _ in range(2)]
    for optimizer, network in zip(self._optimizers, (self.policy, self.critic), strict=True):
      optimizer.build(network.trainable_variables)
    self._updates = 0

  def update(self, batch: Batch) -> float:
    """Takes one step; returns the critic's loss."""
    loss = self._update(batch)
    self._updates += 1
    if self._updates % problem.TARGET_PERIOD == 0:
      self.target_policy.set_weights(self.policy.get_weights())
      self.target_critic.set_weights(self.critic.get_weights())
    return float(loss)

  def weights(self) -> list[np.ndarray]:
    """The weights of the policy, then of the critic, in the order of `problem.weights`."""
    return self.policy.get_weights() + self.critic.get_weights()

  @tf.function
  def _update(self, batch: Batch) -> tf.Tensor:
    observation = batch.observation
    next_action = self.target_policy(batch.next_observation)
    next_logits = self.target_critic(tf.concat([batch.next_observation, next_action], 1))
    goal = _project(batch.reward, batch.discount, tf.nn.softmax(next_logits))
    with tf.GradientTape() as tape:
      logits = self.critic(tf.concat([observation, batch.action], 1))
      loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(goal, logits))
    critic_gradients = tape.gradient(loss, self.critic.trainable_variables)
    with tf.GradientTape() as policy_tape:
      action = self.policy(observation)
      with tf.GradientTape() as tape:
        tape.watch(action)
        logits = self.critic(tf.concat([observation, action], 1))
        q = tf.reduce_sum(tf.nn.softmax(logits) * ATOMS, 1)
      direction = tf.clip_by_norm(tape.gradient(q, action), 1.0, axes=1)
      policy_loss = -tf.reduce_mean(tf.reduce_sum(tf.stop_gradient(direction) * action, 1))
    policy_gradients = policy_tape.gradient(policy_loss, self.policy.trainable_variables)
    policy_optimizer, critic_optimizer = self._optimizers
    policy_optimizer.apply(policy_gradients, self.policy.trainable_variables)
    critic_optimizer.apply(critic_gradients, self.critic.trainable_variables)
    return loss


def _layer_norm_mlp(sizes: tuple[int, ...]) -> list[layers.Layer]:
  first, *further = sizes
  return [layers.Dense(first), layers.LayerNormalization(epsilon=problem.LAYER_NORM_EPSILON),
          layers.Activation("tanh"), *(layers.Dense(size, activation="elu") for size in further)]


def _policy(weights: list[np.ndarray]) -> keras.Model:
  network = keras.Sequential([
      keras.Input([problem.OBSERVATION_SIZE]), *_layer_norm_mlp(problem.POLICY_SIZES),
      layers.Dense(problem.ACTION_SIZE, activation="tanh")])
  network.set_weights(weights)
  return network


def _critic(weights: list[np.ndarray]) -> keras.Model:
  network = keras.Sequential([
      keras.Input([problem.OBSERVATION_SIZE + problem.ACTION_SIZE]),
      *_layer_norm_mlp(problem.CRITIC_SIZES), layers.Dense(problem.NUM_ATOMS)])
  network.set_weights(weights)
  return network


def _project(reward: tf.Tensor, discount: tf.Tensor, probabilities: tf.Tensor) -> tf.Tensor:
  """The distribution of `reward + discount * z`, on the atoms: `[n], [n], [n, 51] -> [n, 51]`."""
  moved = reward[:, None] + discount[:, None] * ATOMS
  place = (tf.clip_by_value(moved, ATOMS[0], ATOMS[-1]) - ATOMS[0]) / (ATOMS[1] - ATOMS[0])
  lower = tf.floor(place)
  upper_share = (place - lower) * probabilities
  first = problem.NUM_ATOMS * tf.range(BATCH_SIZE)[:, None]
  index = first + tf.cast(lower, tf.int32)
  above = tf.minimum(index + 1, first + problem.NUM_ATOMS - 1)
  goal = tf.math.unsorted_segment_sum(
      tf.stack([probabilities - upper_share, upper_share]), tf.stack([index, above]),
      BATCH_SIZE * problem.NUM_ATOMS)
  return tf.reshape(goal, [BATCH_SIZE, problem.NUM_ATOMS])
