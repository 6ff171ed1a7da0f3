"""Networks of actor-critic agents: shapes, published sizes, first actions."""

from models.rl.networks.actor_critic import ActionValues, Critic, Policy, elu
from replicator import UsageError

import gin
import numpy as np
import pytest
import tensorflow as tf


def parameters(network):
  return sum(int(np.prod(v.shape)) for v in network.trainable_variables)


def test_sizes_are_those_of_the_published_networks():
  # Dense: inputs x outputs + outputs; LayerNormalization: 2 x its inputs.
  assert parameters(Policy((24,), 6)) == (24 * 256 + 256) + 512 + 2 * (256 * 256 + 256) + (
      256 * 6 + 6)
  assert parameters(Critic((24,), 6, 51)) == (30 * 512 + 512) + 1024 + (512 * 512 + 512) + (
      512 * 256 + 256) + (256 * 51 + 51)


@pytest.mark.parametrize("shape", [(5,), (44, 44, 3)])
def test_outputs_for_vectors_and_images_start_near_0(shape):
  observations = np.random.default_rng(0).normal(size=[7, *shape]).astype(np.float32)
  outputs = Policy(shape, 2)(observations)
  assert outputs.shape == (7, 2)
  assert np.abs(outputs).max() < 0.1
  critic = Critic(shape, 2, 51)
  values = critic(observations, outputs)
  assert values.shape == (7, 51)
  assert (critic(observations + 1, outputs) != values).numpy().any()
  assert (critic(observations, outputs + 1) != values).numpy().any()


@pytest.mark.parametrize("dtype, jit", [(np.float32, True), (np.float64, False)])
def test_elu_and_its_gradient(dtype, jit):
  x = np.concatenate([np.linspace(-100.0, 100.0, 401), 10.0 ** np.arange(-9, 2),
                      -10.0 ** np.arange(-9, 2)]).astype(dtype)

  @tf.function(autograph=False, jit_compile=jit)
  def found(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = elu(x)
    return y, tape.gradient(y, x, output_gradients=tf.ones_like(x) * 3)

  y, gradient = found(tf.constant(x))
  negative = np.minimum(x, 0.0).astype(np.float64)
  rounding = 2 * np.finfo(dtype).eps
  np.testing.assert_allclose(y, np.where(x > 0, x, np.expm1(negative)), rtol=0, atol=rounding)
  np.testing.assert_allclose(gradient, 3 * np.where(x > 0, 1.0, np.exp(negative)), rtol=0,
                             atol=6 * rounding)


def test_images_too_small_for_the_convolutions_are_refused():
  assert Policy((36, 36, 3), 1)(np.zeros([1, 36, 36, 3], np.float32)).shape == (1, 1)
  with pytest.raises(UsageError, match=r"images of 35 x 36 .* which need 36 pixels"):
    Policy((35, 36, 3), 1)
  gin.bind_parameter("image_torso.convolutions", ((16, 3, 1),))
  # MinAtar's network: 8 x 8 x 16 numbers after a convolution, 128 units.
  network = ActionValues((10, 10, 4), 6, 1, sizes=(128,))
  assert parameters(network) == (9 * 4 * 16 + 16) + (1024 * 128 + 128) + (128 * 6 + 6)
  assert network(np.zeros([2, 10, 10, 4], np.float32)).shape == (2, 6, 1)
  assert ActionValues((10, 10, 4), 6, 1)(np.zeros([2, 10, 10, 4], np.float32)).shape == (2, 6, 1)
