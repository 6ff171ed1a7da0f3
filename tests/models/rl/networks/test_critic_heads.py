"""Targets and losses of critic heads against definitions in NumPy."""

import types

from models.rl.networks.critic_heads import CategoricalReturns, ExpectedReturns, project

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


def test_the_share_of_a_target_beyond_the_atoms_is_logged():
  head = CategoricalReturns(-1.0, 2.0, 4)
  rewards, discounts = np.array([0.0, -0.5, 1.5, 9.0]), np.array([1.0, 1.0, 0.5, 0.0])
  probabilities = distributions(4, 4)
  z = np.linspace(-1.0, 2.0, 4)
  returns = rewards[:, np.newaxis] + discounts[:, np.newaxis] * z
  share = ((returns < -1.0) | (returns > 2.0)) * probabilities
  found = head.scalars(*map(tf.constant, (rewards, discounts, np.log(probabilities))))
  np.testing.assert_allclose(found["clipped_returns"], share.sum(1).mean(), rtol=1e-12)
  assert 0 < share.sum() < 4 and ExpectedReturns().scalars(None, None, None) == {}


def test_atoms_that_do_not_reach_are_a_line_with_those_that_do():
  replay = types.SimpleNamespace(reward=tf.Variable([0.0, -16.0, -3.0]), discount=0.99)
  doubts = lambda share: CategoricalReturns().doubts({"clipped_returns": share}, replay)
  assert doubts(0.1) == {}
  line = doubts(0.97)["clipped_returns"]
  assert "clipped_returns is 0.97: this fraction" in line
  assert "v_min = -150 and .v_max = 150" in line
  assert line.endswith("allow CategoricalReturns.v_min = -1600 and CategoricalReturns.v_max = 0")
  replay.discount = 1.0
  assert doubts(0.2)["clipped_returns"].endswith("set bounds that cover all returns")
