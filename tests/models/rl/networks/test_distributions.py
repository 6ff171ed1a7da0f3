"""Distributions of actions against their definitions."""

from models.rl.networks import distributions
from models.rl.networks.distributions import Categorical, Gaussian

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


def test_choices_are_independent():
  both = Categorical([1, 3])
  p = tf.nn.softmax(LOGITS[:, 1:])[0].numpy().astype(float)
  drawn = both.draw(tf.repeat(LOGITS, len(NOISE), 0), NOISE).numpy()
  np.testing.assert_allclose(drawn.mean(0), [1, *p], atol=0.005)
  np.testing.assert_array_equal(both.draw(LOGITS, tf.zeros([1, 4])), [[1, 0, 0, 1]])
  three = Categorical([2, 2])
  logits = np.array([[1.0, -1.0, 0.0, 2.0]])
  first, second = (np.exp(x) / np.exp(x).sum() for x in (logits[0, :2], logits[0, 2:]))
  for i, j in np.ndindex(2, 2):
    action = np.concatenate([np.eye(2)[i], np.eye(2)[j]])[np.newaxis]
    found = three.log_probability(tf.constant(logits), tf.constant(action))
    np.testing.assert_allclose(found, [np.log(first[i] * second[j])], rtol=1e-12)
  joint = np.outer(first, second)
  np.testing.assert_allclose(three.entropy(tf.constant(logits)),
                             [-(joint * np.log(joint)).sum()], rtol=1e-12)


POSSIBLE = tf.constant([[True, True, False, False]])


@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.0])
def test_an_impossible_action_is_never_taken(epsilon):
  logits = distributions.epsilon_greedy(LOGITS, tf.constant(epsilon), POSSIBLE)
  expected = np.array([1 - epsilon / 2, epsilon / 2, 0, 0])
  found = shares(logits)
  np.testing.assert_allclose(found, expected, atol=0.005)
  assert not found[2:].any()
  np.testing.assert_array_equal(distributions.draw(logits, tf.zeros([1, 4])), [[1, 0, 0, 0]])


@pytest.mark.parametrize("dtype, tolerance", [
    ("float64", 1e-6), ("float32", 1e-6), ("float16", 2e-3), ("bfloat16", 2e-2)])
@pytest.mark.parametrize("shift", [0.0, 512.0])
def test_probabilities_are_those_of_the_possible_actions(dtype, tolerance, shift):
  outputs = tf.Variable(tf.cast(LOGITS + shift, dtype))
  two = np.exp([1.0, -1.0]) / np.exp([1.0, -1.0]).sum()
  if dtype == "bfloat16" and shift:
    two = np.ones(2) / 2  # It has no number between 512 and 516.
  categorical = Categorical([4])
  with tf.GradientTape() as tape:
    logits = distributions.masked(outputs, POSSIBLE)
    probability = categorical.log_probability(logits, tf.constant([[0.0, 1, 0, 0]], dtype))
    entropy = categorical.entropy(logits)
    loss = probability + entropy
  as_floats = lambda x: tf.cast(x, tf.float64).numpy()
  np.testing.assert_allclose(as_floats(probability), [np.log(two[1])], rtol=tolerance)
  np.testing.assert_allclose(as_floats(entropy), [-(two * np.log(two)).sum()], rtol=tolerance)
  gradient = as_floats(tape.gradient(loss, outputs))
  assert gradient[0, :2].all() and not gradient[0, 2:].any()
  assert not shares(logits)[2:].any()


def test_a_gaussian_action_is_drawn_around_the_mean(float64):  # PPO's test has the probabilities.
  mean, noise = np.array([[0.5, -1.0]]), np.array([[0.7, 1.0]])
  gaussian = Gaussian(2)
  gaussian.log_deviation.assign([0.3, -0.2])
  np.testing.assert_allclose(gaussian.draw(tf.constant(mean), noise),
                             mean + np.exp([0.3, -0.2]) * noise)
