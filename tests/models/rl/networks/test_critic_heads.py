"""Targets and losses of critic heads against definitions in NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from models.rl.networks.critic_heads import CategoricalReturns, ExpectedReturns
from replicator import UsageError

RNG = np.random.default_rng(0)
REWARDS, DISCOUNTS = RNG.normal(0.0, 2.0, 8), RNG.choice([0.0, 0.5], 8)


@pytest.fixture(autouse=True)
def in_float64(restored):
  keras.config.set_floatx("float64")


def test_the_target_distribution_has_the_mean_of_the_discounted_return():
  returns = CategoricalReturns(-20.0, 20.0, 81)  # Wide enough: no return is clipped.
  following = tf.constant(RNG.normal(size=[8, 81]))
  target = returns.target(tf.constant(REWARDS), tf.constant(DISCOUNTS), following)
  np.testing.assert_allclose(tf.reduce_sum(target, 1), 1.0, rtol=1e-12)
  np.testing.assert_allclose(target @ np.linspace(-20.0, 20.0, 81)[:, np.newaxis],
                             (REWARDS + DISCOUNTS * returns.mean(following))[:, np.newaxis],
                             rtol=1e-12)
  assert returns.outputs == 81


def test_cross_entropy_is_least_at_the_target():
  returns = CategoricalReturns(-1.0, 1.0, 3)
  target = np.array([[0.2, 0.5, 0.3]])
  found = [returns.losses(tf.constant(target), tf.constant(np.log(p)))[0].numpy()
           for p in (target, [[0.3, 0.4, 0.3]])]
  np.testing.assert_allclose(found, [-(target * np.log(p)).sum()
                                     for p in (target, [[0.3, 0.4, 0.3]])], rtol=1e-12)


def test_expected_returns_and_their_squared_errors():
  returns = ExpectedReturns()
  following, outputs = RNG.normal(size=[8, 1]), RNG.normal(size=[8, 1])
  target = returns.target(tf.constant(REWARDS), tf.constant(DISCOUNTS), tf.constant(following))
  expected = REWARDS + DISCOUNTS * following[:, 0]
  np.testing.assert_allclose(target, expected, rtol=1e-12)
  np.testing.assert_allclose(returns.losses(target, tf.constant(outputs)),
                             (outputs[:, 0] - expected) ** 2 / 2, rtol=1e-12)
  np.testing.assert_array_equal(returns.mean(tf.constant(outputs)), outputs[:, 0])


@pytest.mark.parametrize("settings", [{"atoms": 1}, {"lowest": 5.0, "highest": 5.0}])
def test_atoms_that_span_nothing_are_refused(settings):
  with pytest.raises(UsageError, match="two or more, and highest above lowest"):
    CategoricalReturns(**settings)
