"""Latent optimization: that all steps run, their closed form, and derivatives through them."""

from models.gan.latents.optimization import LatentOptimization, natural_gradient, plain_gradient
from replicator import UsageError
from tests.models.gan.networks.plain import slopes

import gin
import numpy as np
import pytest
import tensorflow as tf

Z = np.random.default_rng(0).uniform(-0.5, 0.5, size=[3, 4])
TARGET = np.array([0.3, -0.2, 0.1, 0.4])


def quadratic(z: tf.Tensor, target=TARGET) -> tf.Tensor:
  """-|z - target|^2 / 2, whose gradient is target - z."""
  return -tf.reduce_sum((z - target) ** 2, 1) / 2


@pytest.mark.parametrize("steps", [0, 1, 3, 5])
def test_every_step_runs(steps):
  calls = []
  optimization = LatentOptimization(steps, lambda: plain_gradient(0.25), 1.0, weight=2.0)
  moved, cost = optimization(lambda z: calls.append(1) or quadratic(z), tf.constant(Z))
  assert len(calls) == steps
  # Each step goes a quarter of the way that is left.
  expected = TARGET + 0.75 ** steps * (Z - TARGET)
  np.testing.assert_allclose(moved, expected, rtol=1e-12)
  np.testing.assert_allclose(cost, 2 * np.mean(np.sum((expected - Z) ** 2, 1)), atol=1e-15)


def test_a_natural_step_is_damped_by_its_square():
  gradient = TARGET - Z
  expected = 0.9 * gradient / (5.0 + np.sum(gradient ** 2, 1, keepdims=True))
  np.testing.assert_allclose(natural_gradient()(tf.constant(gradient)), expected, rtol=1e-12)
  # The same by the inverse of the Fisher matrix, row by row.
  for g, step in zip(gradient, expected, strict=True):
    np.testing.assert_allclose(0.9 * np.linalg.inv(np.outer(g, g) + 5 * np.eye(4)) @ g, step,
                               rtol=1e-12)


def test_half_of_the_elements_move_and_none_leaves_the_range():
  moved, _ = LatentOptimization(direction=lambda: lambda g: 100 * g)(quadratic, tf.constant(Z))
  np.testing.assert_array_equal(moved[:, 2:], Z[:, 2:])
  np.testing.assert_array_equal(moved[:, :2], np.sign(TARGET - Z)[:, :2])


def test_a_share_of_no_element_is_refused():
  with pytest.raises(UsageError, match=r"fraction = 0\.05: is less than one element of a latent"):
    LatentOptimization(fraction=0.05)(quadratic, tf.constant(Z))
  moved, _ = LatentOptimization(steps=0, fraction=0.05)(quadratic, tf.constant(Z))
  np.testing.assert_array_equal(moved, Z)


def test_it_is_differentiated_through():
  target = tf.Variable(TARGET)

  def loss():
    moved, cost = LatentOptimization(2, fraction=1.0)(lambda z: quadratic(z, target),
                                                      tf.constant(Z))
    return tf.reduce_sum(moved ** 3) + cost

  np.testing.assert_allclose(*slopes([target], loss), rtol=1e-6)


def test_without_steps_the_settings_of_the_direction_count_as_used():
  # A binding that nothing uses ends a run, and `steps = 0` is the run to compare with.
  gin.parse_config("natural_gradient.rate = 0.5")
  LatentOptimization(steps=0)
  assert "natural_gradient.rate = 0.5" in gin.operative_config_str()
