"""Distributions over atoms against their definitions, computed one number at a time."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from models.rl.networks import categorical

RNG = np.random.default_rng(0)


def brute_force(returns, probabilities, z):
  """The projection, where each return splits its probability between the atoms around it."""
  projected = np.zeros([len(returns), len(z)])
  step = z[1] - z[0]
  for row, (values, weights) in enumerate(zip(returns, probabilities, strict=True)):
    for value, weight in zip(values, weights, strict=True):
      place = (min(max(value, z[0]), z[-1]) - z[0]) / step
      below = min(int(np.floor(place)), len(z) - 2)
      projected[row, below] += weight * (below + 1 - place)
      projected[row, below + 1] += weight * (place - below)
  return projected


def distributions(n, k):
  weights = RNG.exponential(size=[n, k]) ** 4
  return weights / weights.sum(1, keepdims=True)


Z = np.linspace(-150.0, 150.0, 51)
RETURNS = {
    "random": RNG.normal(0.0, 80.0, [64, 51]),
    "the atoms themselves": np.tile(Z, [64, 1]),
    "halfway between atoms": np.tile(Z + 3.0, [64, 1]),
    "far below": np.full([64, 51], -1e30),
    "far above": np.full([64, 51], 1e30),
    "infinite": np.tile([-np.inf, np.inf, 0.0] * 17, [64, 1]),
    "terminal: one return": np.tile(RNG.normal(0.0, 100.0, [64, 1]), [1, 51]),
    "just beside atoms": np.tile(np.nextafter(Z, np.inf), [64, 1]),
}


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("name", RETURNS)
def test_projection_equals_brute_force(name, jit):
  probabilities = distributions(64, 51)
  project = tf.function(categorical.project, autograph=False, jit_compile=jit)
  projected = project(tf.constant(RETURNS[name]), tf.constant(probabilities), tf.constant(Z))
  np.testing.assert_allclose(projected, brute_force(RETURNS[name], probabilities, Z), atol=1e-12)
  np.testing.assert_allclose(np.sum(projected, 1), 1.0, rtol=1e-12)


@pytest.mark.parametrize("lowest, highest, number", [(-1500.0, 0.0, 51), (0.0, 1e-3, 2),
                                                     (-1e6, 1e6, 101)])
def test_projection_onto_any_atoms_in_float32(lowest, highest, number):
  z = np.linspace(lowest, highest, number)
  returns = RNG.uniform(lowest - 0.2 * (highest - lowest), highest, [64, number])
  probabilities = distributions(64, number)
  found = categorical.atoms(lowest, highest, number, tf.float32)
  np.testing.assert_allclose(found, z, rtol=1e-6)
  projected = categorical.project(tf.constant(returns, tf.float32),
                                  tf.constant(probabilities, tf.float32), found)
  np.testing.assert_allclose(projected, brute_force(returns, probabilities, z), atol=2e-5)


def test_projection_keeps_the_mean_of_returns_within_the_atoms():
  returns, probabilities = RNG.uniform(-150.0, 150.0, [64, 51]), distributions(64, 51)
  projected = categorical.project(tf.constant(returns), tf.constant(probabilities), tf.constant(Z))
  np.testing.assert_allclose(projected.numpy() @ Z, (returns * probabilities).sum(1), atol=1e-10)


def test_mean_and_cross_entropy_are_those_of_the_softmax():
  logits, target = RNG.normal(size=[8, 51]) * 5, distributions(8, 51)
  weights = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
  np.testing.assert_allclose(categorical.mean(tf.constant(logits), tf.constant(Z)), weights @ Z)
  np.testing.assert_allclose(
      categorical.cross_entropy(tf.constant(target), tf.constant(logits)),
      -(target * np.log(weights)).sum(1))


def test_a_critic_learns_the_target_distribution():
  target = tf.constant(distributions(4, 11), tf.float32)
  logits = keras.Variable(np.zeros([4, 11], np.float32))
  for _ in range(400):
    with tf.GradientTape() as tape:
      loss = tf.reduce_sum(categorical.cross_entropy(target, logits.value))
    logits.assign_sub(tape.gradient(loss, logits.value))
  np.testing.assert_allclose(tf.nn.softmax(logits), target, atol=2e-2)
