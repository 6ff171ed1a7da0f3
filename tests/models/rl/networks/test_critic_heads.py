"""Targets and losses of critic heads against definitions in NumPy."""

from models.rl.networks.critic_heads import CategoricalReturns, project

import keras
import numpy as np
import pytest
import tensorflow as tf

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
    "far below": np.full([64, 51], -1e30),
    "infinite": np.tile([-np.inf, np.inf, 0.0] * 17, [64, 1]),
    "just beside atoms": np.tile(np.nextafter(Z, np.inf), [64, 1]),
}


@pytest.fixture(autouse=True)
def in_float64():
  keras.config.set_floatx("float64")


@pytest.mark.parametrize("jit", [False, True])
def test_projection_equals_brute_force(jit):
  probabilities = distributions(64, 51)
  compiled = tf.function(project, autograph=False, jit_compile=jit)
  for name, returns in RETURNS.items():
    found = compiled(tf.constant(returns), tf.constant(probabilities), tf.constant(Z))
    np.testing.assert_allclose(found, brute_force(returns, probabilities, Z), atol=1e-12,
                               err_msg=name)


@pytest.mark.parametrize("lowest, highest, number", [(-1500.0, 0.0, 51), (0.0, 1e-3, 2),
                                                     (-1e6, 1e6, 101)])
def test_the_target_distribution_on_any_atoms_in_float32(lowest, highest, number):
  keras.config.set_floatx("float32")
  head, z = CategoricalReturns(lowest, highest, number), np.linspace(lowest, highest, number)
  rewards = RNG.uniform(lowest - 0.2 * (highest - lowest), highest, 64)
  probabilities = distributions(64, number)
  discounts = RNG.choice([0.0, 0.5], [64, 1])
  target = head.target(*(tf.constant(x, tf.float32) for x in (
      rewards, discounts[:, 0], np.log(np.maximum(probabilities, 1e-30)))))
  returns = rewards[:, np.newaxis] + discounts * z
  np.testing.assert_allclose(target, brute_force(returns, probabilities, z), atol=2e-5)
  assert head.outputs == number


def test_mean_and_losses_are_those_of_the_softmax():
  logits, target = RNG.normal(size=[8, 51]) * 5, distributions(8, 51)
  weights = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
  returns = CategoricalReturns()
  np.testing.assert_allclose(returns.mean(tf.constant(logits)), weights @ Z)
  np.testing.assert_allclose(returns.losses(tf.constant(target), tf.constant(logits)),
                             -(target * np.log(weights)).sum(1))
