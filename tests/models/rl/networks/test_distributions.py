"""Distributions of actions against their definitions."""

from models.rl.networks import distributions
from models.rl.networks.distributions import Gaussian

import numpy as np
import pytest
import tensorflow as tf

LOGITS = tf.constant([[1.0, -1.0, 0.0, 2.0]])
NOISE = np.random.default_rng(0).normal(size=[100_000, 4]).astype(np.float32)


def shares(logits: tf.Tensor) -> np.ndarray:
  """How often each action is drawn."""
  drawn = distributions.draw(tf.repeat(logits, len(NOISE), 0), NOISE).numpy()
  assert (drawn.sum(1) == 1).all() and ((drawn == 0) | (drawn == 1)).all()
  return drawn.mean(0)


def test_actions_are_drawn_by_their_probabilities_and_without_noise_the_most_probable():
  np.testing.assert_allclose(shares(LOGITS), tf.nn.softmax(LOGITS)[0], atol=0.005)
  drawn = distributions.draw(LOGITS, tf.zeros([1, 4]))
  np.testing.assert_array_equal(drawn, [[0, 0, 0, 1]])


@pytest.mark.parametrize("epsilon", [0.0, 0.2, 1.0])
def test_an_epsilon_greedy_action_is_any_with_probability_epsilon(epsilon):
  logits = distributions.epsilon_greedy(LOGITS, tf.constant(epsilon))
  expected = epsilon / 4 + (1 - epsilon) * np.eye(4)[3]
  np.testing.assert_allclose(shares(logits), expected, atol=0.005)
  np.testing.assert_array_equal(distributions.draw(logits, tf.zeros([1, 4])), [[0, 0, 0, 1]])


def test_a_gaussian_action_is_drawn_around_the_mean(float64):  # PPO's test has the probabilities.
  mean, noise = np.array([[0.5, -1.0]]), np.array([[0.7, 1.0]])
  gaussian = Gaussian(2)
  gaussian.log_deviation.assign([0.3, -0.2])
  np.testing.assert_allclose(gaussian.draw(tf.constant(mean), noise),
                             mean + np.exp([0.3, -0.2]) * noise)
