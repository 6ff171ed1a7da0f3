"""SpectralNorm against NumPy in float64 and closed forms."""

import functools

from replicator import Replicator, SpectralNorm, UsageError, all_mean, microbatch
from tests.programs.closeness import close

import keras
import numpy as np
import pytest
import tensorflow as tf

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=[2, 5, 5, 3])
_STATE = RNG.bit_generator.state


@pytest.fixture(autouse=True)
def same_numbers_in_any_order():
  RNG.bit_generator.state = _STATE


def as_rows(*axes: int):
  """The matrix that PyTorch's spectral_norm sees: `axes` of the kernel are its rows."""
  def matrix(kernel: np.ndarray) -> np.ndarray:
    others = [axis for axis in range(kernel.ndim) if axis not in axes]
    rows = np.prod([kernel.shape[axis] for axis in axes])
    return kernel.transpose(*axes, *others).reshape(rows, -1)
  return matrix


L = keras.layers
SERIES, VOLUMES = RNG.normal(size=[2, 5, 4]), RNG.normal(size=[2, 3, 3, 3, 2])
# What makes a layer, its inputs, its matrix in PyTorch, and the length of u.
LAYERS = {
    "dense": (lambda: L.Dense(4, use_bias=False), np.eye(6), as_rows(1), 4),
    "conv1d": (lambda: L.Conv1D(3, 2, use_bias=False), SERIES, as_rows(2), 3),
    "conv2d": (lambda: L.Conv2D(4, 3, use_bias=False), IMAGES, as_rows(3), 4),
    "conv3d": (lambda: L.Conv3D(3, 2, use_bias=False), VOLUMES, as_rows(4), 3),
    "grouped": (lambda: L.Conv1D(6, 2, groups=2, use_bias=False), SERIES, as_rows(2), 6),
    "conv1d_transpose": (lambda: L.Conv1DTranspose(3, 2, use_bias=False), SERIES, as_rows(1), 3),
    "conv2d_transpose": (lambda: L.Conv2DTranspose(4, 3, use_bias=False), IMAGES, as_rows(2), 4),
    "conv3d_transpose": (lambda: L.Conv3DTranspose(3, 2, use_bias=False), VOLUMES, as_rows(3), 3),
    "depthwise1d": (lambda: L.DepthwiseConv1D(2, depth_multiplier=3, use_bias=False), SERIES,
                    as_rows(1, 2), 12),
    "depthwise2d": (lambda: L.DepthwiseConv2D(3, depth_multiplier=2, use_bias=False), IMAGES,
                    as_rows(2, 3), 6),
    "embedding": (lambda: L.Embedding(7, 4), np.arange(7), as_rows(0), 4),
}


def kernel_of(layer: SpectralNorm) -> np.ndarray:
  """The kernel as a matrix [rows, c]."""
  kernel = layer.kernel.numpy()
  return kernel.reshape(-1, kernel.shape[-1])


def with_a_gap(shape: tuple) -> np.ndarray:
  """A kernel whose first singular value is far above the second, whatever its matrix."""
  directions = [RNG.uniform(1, 2, n).reshape([-1] + [1] * (len(shape) - i - 1))
                for i, n in enumerate(shape)]
  return 0.1 * RNG.normal(size=shape) + functools.reduce(np.multiply, directions)


@pytest.mark.parametrize("kind", LAYERS)
def test_spectral_norm_converges_to_the_largest_singular_value(float64, kind):
  make, inputs, matrix, columns = LAYERS[kind]
  layer = SpectralNorm(make(), power_iterations=15)
  layer.build(inputs.shape)
  layer.kernel.assign(with_a_gap(layer.kernel.shape))
  assert layer.u.shape == (1, columns)
  outputs = layer(inputs, training=True)
  sigma = np.linalg.svd(matrix(layer.kernel.numpy()), compute_uv=False)[0]
  plain = layer.layer(inputs).numpy()
  close(outputs, plain / sigma, 1e-9)
  close(layer(inputs), plain / sigma, 1e-9)
  assert layer.compute_output_shape(inputs.shape) == outputs.shape


@pytest.mark.parametrize("scale", [1e-20, 1e-6, 1.0, 1e20])
def test_the_scale_of_a_kernel_does_not_matter(scale):
  layer = SpectralNorm(L.Dense(4, use_bias=False), power_iterations=20)
  kernel = np.diag([3.0, 1.5, 1.0, 1.0])
  layer.build((None, 4))
  layer.kernel.assign(scale * kernel)
  with tf.GradientTape() as tape:
    outputs = layer(tf.eye(4), training=True)
    total = tf.reduce_sum(outputs)
  np.testing.assert_allclose(outputs, kernel / 3, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(layer(tf.eye(4)), kernel / 3, rtol=1e-5, atol=1e-6)
  gradient = np.ones([4, 4]) / 3
  gradient[0, 0] -= kernel.sum() / 9
  np.testing.assert_allclose(scale * tape.gradient(total, layer.kernel.value), gradient,
                             rtol=1e-5, atol=1e-6)


def test_a_kernel_of_zeros_stays_zero_and_heals():
  layer = SpectralNorm(L.Dense(4, kernel_initializer="zeros"))
  x = tf.constant(RNG.normal(size=[5, 3]), tf.float32)
  for training in (True, False, True):
    with tf.GradientTape() as tape:
      outputs = layer(x, training=training)
      total = tf.reduce_sum(outputs)
    np.testing.assert_array_equal(outputs, np.zeros([5, 4]))
    assert np.isfinite(tape.gradient(total, layer.kernel.value)).all()
  kernel = with_a_gap([3, 4]).astype(np.float32)
  for values in (np.full([3, 4], np.nan), kernel, np.zeros([3, 4])):
    layer.kernel.assign(values)
    layer(x, training=True)
  np.testing.assert_allclose(np.linalg.norm(layer.u), 1, rtol=1e-6)
  layer.kernel.assign(kernel)
  for _ in range(8):
    outputs = layer(x, training=True)
  sigma = np.linalg.svd(kernel, compute_uv=False)[0]
  np.testing.assert_allclose(outputs, x @ kernel / sigma, rtol=1e-4, atol=1e-5)


class Restless(keras.layers.Layer):
  """A layer with a kernel, that draws, counts its calls and adds a loss."""

  def build(self, input_shape):
    self.kernel = self.add_weight(shape=(input_shape[-1], 2), initializer="ones", name="kernel")
    self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")
    self.seeds = keras.random.SeedGenerator(0)

  def call(self, inputs):
    self.calls.assign(self.calls + 1)
    self.add_loss(tf.reduce_sum(self.kernel.value))
    return inputs @ self.kernel.value + keras.random.normal([2], seed=self.seeds)

  def compute_output_shape(self, input_shape):
    return (input_shape[0], 2)


def test_what_the_wrapped_layer_assigns_and_adds_is_kept():
  layer, x = SpectralNorm(Restless()), tf.ones([1, 3])
  layer.build(x.shape)
  first, second = (layer(x, training=True).numpy() for _ in range(2))
  assert not np.array_equal(first, second)
  assert float(layer.layer.calls) == 2
  np.testing.assert_allclose(layer.losses, [np.sqrt(6)], rtol=1e-5)  # 6 / sigma.
  with keras.StatelessScope(initialize_variables=False) as scope:
    layer(x, training=True)
  assert float(scope.get_current_value(layer.layer.calls)) == 3
  assert float(layer.layer.calls) == 2


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
  """Miyato et al. 2018, Algorithm 1: u as a row, then v of this u, and sigma."""
  unit = lambda a: a / np.linalg.norm(a)
  for _ in range(iterations):
    u = unit(unit(u @ w.T) @ w)
  v = unit(u @ w.T)
  return u, v, (v @ w @ u.T).item()


def test_a_spectral_norm_step_is_the_closed_form(float64, one_or_two):
  layer = dense(one_or_two, power_iterations=3)
  w, u = kernel_of(layer), layer.u.numpy()
  bias = layer.layer.bias.numpy()
  batch = {"x": RNG.normal(size=[8, 6]), "t": RNG.normal(size=[8, 4])}

  def step(batch):
    with tf.GradientTape() as tape:
      y = layer(batch["x"], training=True)
      loss = tf.reduce_mean(tf.reduce_sum(y * batch["t"], 1))
    gradients = tape.gradient(loss, [layer.kernel.value, layer.layer.bias.value])
    return {"y": y, "gradients": all_mean(gradients), "u": tf.identity(layer.u.value)}

  results = one_or_two.run(step, batch)
  u, v, sigma = power_iteration(w, u, 3)
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


@pytest.mark.parametrize("iterations, training", [(1, False), (0, True)])
def test_inference_does_not_move_the_vector_nor_does_a_layer_without_iterations(
    float64, one_or_two, iterations, training):
  layer = dense(one_or_two, power_iterations=iterations)
  before, x = layer.u.numpy(), RNG.normal(size=[4, 6])
  unit = before / np.linalg.norm(before)
  expected = x @ kernel_of(layer) / power_iteration(kernel_of(layer), unit, 0)[2]
  for _ in range(2):
    outputs = one_or_two.run(lambda x: layer(x, training=training), x)
    close(np.concatenate(outputs), expected + layer.layer.bias.numpy(), 1e-12)
  np.testing.assert_array_equal(layer.u.numpy(), before)


def test_a_call_without_training_is_that_of_the_training_before(float64, one_or_two):
  layer, x = dense(one_or_two), RNG.normal(size=[4, 6])
  for _ in range(2):
    trained = one_or_two.run(lambda x: [layer(x, training=True), layer(x)], x)
    for of_training, alone in trained:
      close(alone, of_training, 1e-15)


@pytest.mark.parametrize("trainings", [[False, True], [True, False, True]], ids=str)
def test_micro_batches_meet_the_vectors_of_one_piece(float64, one_or_two, trainings):
  x = RNG.normal(size=[4, 6])

  def outputs(n: int) -> list[np.ndarray]:
    layer = dense(one_or_two)
    return one_or_two.run(lambda x: all_mean(microbatch(
        lambda part: [tf.reduce_mean(layer(part, training=t), 0) for t in trainings], x, n)), x)[0]

  for divided, whole in zip(outputs(2), outputs(1), strict=True):
    close(divided, whole, 1e-13)


def test_a_call_made_twice_in_a_step_iterates_twice(two, float64):
  layer = dense(two)
  u = layer.u.numpy()
  two.run(lambda x: [layer(x, training=True), layer(x, training=True)], np.ones([2, 6]))
  close(layer.u.numpy(), power_iteration(kernel_of(layer), u, 2)[0], 1e-12)


@pytest.mark.parametrize("make, shape, message", [
    (L.ReLU, [1, 4], "ReLU 're_lu.*' has no kernel; wrap layers with exactly one"),
    (lambda: L.SeparableConv2D(2, 3), [1, 4, 4, 2], "has the kernels depthwise_kernel, pointwise_"),
    (lambda: L.LSTMCell(2), [1, 4], "has the kernels kernel, recurrent_kernel"),
    (lambda: L.EinsumDense("ab,bc->ac", 3), [1, 4], "only together with its equation; use "),
], ids=["none", "two", "recurrent", "einsum"])
def test_a_layer_without_one_kernel_is_refused(make, shape, message):
  with pytest.raises(UsageError, match=message):
    SpectralNorm(make()).build(shape)


def test_a_layer_that_keras_recomputes_is_refused():
  for options in ({"mode": "full"}, {"mode": "larger_than"},
                  {"mode": "list_of_layers", "layer_names": ["x"]}):
    with keras.RematScope(**options):
      layer = L.Dense(2, name="x")
    with pytest.raises(UsageError, match=r"'x' was created in a keras.RematScope.*create it out"):
      SpectralNorm(layer)
  with keras.RematScope(mode="activations"):
    SpectralNorm(L.Dense(2))
