"""SpectralNorm against NumPy in float64 and closed forms."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from replicator import Replicator, SpectralNorm, all_mean
from tests.programs.closeness import close

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=[2, 5, 5, 3])
_STATE = RNG.bit_generator.state


@pytest.fixture(autouse=True)
def same_numbers_in_any_order():
  RNG.bit_generator.state = _STATE


LAYERS = {
    "dense": (lambda: keras.layers.Dense(4, use_bias=False), np.eye(6)),
    "conv2d": (lambda: keras.layers.Conv2D(4, 3, use_bias=False), IMAGES),
    "conv2d_transpose": (lambda: keras.layers.Conv2DTranspose(4, 3, use_bias=False), IMAGES),
    "embedding": (lambda: keras.layers.Embedding(7, 4), np.arange(7)),
}


def kernel_of(layer: SpectralNorm) -> np.ndarray:
  """The kernel as a matrix [rows, c]."""
  kernel = layer.kernel.numpy()
  return kernel.reshape(-1, kernel.shape[-1])


@pytest.mark.parametrize("kind", LAYERS)
def test_spectral_norm_converges_to_the_largest_singular_value(float64, kind):
  make, inputs = LAYERS[kind]
  layer = SpectralNorm(make(), power_iterations=5)
  layer.build(inputs.shape)
  layer.kernel.assign(RNG.normal(size=layer.kernel.shape))
  for _ in range(100):
    outputs = layer(inputs, training=True)
  sigma = np.linalg.svd(kernel_of(layer), compute_uv=False)[0]
  plain = layer.layer(inputs).numpy()
  close(outputs, plain / sigma, 1e-9)
  close(layer(inputs), plain / sigma, 1e-9)
  assert layer.compute_output_shape(inputs.shape) == outputs.shape


def dense(replicator: Replicator, **kwargs) -> SpectralNorm:
  """A layer with a kernel [6, 4], a vector u and a bias that are always the same."""
  rng = np.random.default_rng(1)
  with replicator.scope():
    layer = SpectralNorm(keras.layers.Dense(4), **kwargs)
    layer.build((None, 6))
  layer.kernel.assign(rng.normal(size=[6, 4]))
  layer.layer.bias.assign(rng.normal(size=[4]))
  layer.u.assign(rng.normal(size=[1, 4]))
  return layer


def power_iteration(w: np.ndarray, u: np.ndarray, iterations: int):
  """Miyato et al. 2018, Algorithm 1: u and v as rows, and sigma."""
  unit = lambda a: a / np.linalg.norm(a)
  v = unit(u @ w.T)
  for _ in range(iterations):
    v = unit(u @ w.T)
    u = unit(v @ w)
  return u, v, (v @ w @ u.T).item()


@pytest.mark.parametrize("iterations", [1, 3])
def test_a_spectral_norm_step_is_the_closed_form(float64, synchronous, iterations):
  layer = dense(synchronous, power_iterations=iterations)
  w, u = kernel_of(layer), layer.u.numpy()
  bias = layer.layer.bias.numpy()
  batch = {"x": RNG.normal(size=[8, 6]), "t": RNG.normal(size=[8, 4])}

  def step(batch):
    with tf.GradientTape() as tape:
      y = layer(batch["x"], training=True)
      loss = tf.reduce_mean(tf.reduce_sum(y * batch["t"], 1))
    gradients = tape.gradient(loss, [layer.kernel.value, layer.layer.bias.value])
    return {"y": y, "gradients": all_mean(gradients), "u": tf.identity(layer.u.value)}

  results = synchronous.run(step, batch)
  u, v, sigma = power_iteration(w, u, iterations)
  close(np.concatenate([r["y"] for r in results]), batch["x"] @ w / sigma + bias, 1e-12)
  # Eq. 9 and 10 of the paper, with G the gradient for the normalized kernel and
  # d sigma / dW = v^T u, u and v being constants.
  g = batch["x"].T @ batch["t"] / 8
  expected = g / sigma - np.sum(g * w) / sigma ** 2 * v.T @ u
  for result in results:
    close(result["gradients"][0], expected, 1e-12)
    close(result["gradients"][1], batch["t"].mean(0), 1e-12)
    close(result["u"], u, 1e-12)
  close(layer.u.numpy(), u, 1e-12)
  np.testing.assert_array_equal(kernel_of(layer), w)  # The kernel is never overwritten.


def test_inference_does_not_move_the_vector(float64, synchronous):
  layer = dense(synchronous)
  before, x = layer.u.numpy(), RNG.normal(size=[4, 6])
  expected = x @ kernel_of(layer) / power_iteration(kernel_of(layer), before, 0)[2]
  for _ in range(2):
    outputs = np.concatenate(synchronous.run(layer, x))
    close(outputs, expected + layer.layer.bias.numpy(), 1e-12)
  np.testing.assert_array_equal(layer.u.numpy(), before)


def test_a_call_made_twice_in_a_step_iterates_twice(float64):
  replicator = Replicator("mirrored", logical_cpus=2)
  layer = dense(replicator)
  u = layer.u.numpy()
  replicator.run(lambda x: [layer(x, training=True), layer(x, training=True)], np.ones([2, 6]))
  close(layer.u.numpy(), power_iteration(kernel_of(layer), u, 2)[0], 1e-12)


def test_weights_replaced_by_an_enclosing_scope_are_used(float64, synchronous):
  layer = dense(synchronous)
  kernel, bias, x = RNG.normal(size=[6, 4]), RNG.normal(size=[4]), RNG.normal(size=[4, 6])
  expected = x @ kernel / power_iteration(kernel, layer.u.numpy(), 0)[2] + bias
  def step(x):
    replaced = [(layer.kernel, tf.constant(kernel)), (layer.layer.bias, tf.constant(bias))]
    with keras.StatelessScope(replaced, initialize_variables=False):
      return layer(x, training=False)
  close(np.concatenate(synchronous.run(step, x)), expected, 1e-12)
  close(step(tf.constant(x)), expected, 1e-12)
  assert not np.array_equal(kernel_of(layer), kernel)


@pytest.mark.parametrize("make", [
    keras.layers.ReLU, lambda: keras.layers.SeparableConv2D(2, 3)], ids=["relu", "separable"])
def test_a_layer_without_a_kernel_is_refused(make):
  with pytest.raises(ValueError, match="has neither 'kernel' nor 'embeddings'"):
    SpectralNorm(make())(tf.zeros([1, 4, 4, 2]))
