"""Inputs, networks with other weights, checks, and parts in elementary operations."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import keras
import numpy as np
import tensorflow as tf

_Networks = TypeVar("_Networks", bound=Sequence[keras.Model])


def normal(*shape: int, dtype: str = "float64") -> tf.Tensor:
  """The same numbers at every call."""
  return tf.constant(np.random.default_rng(0).normal(size=shape), dtype)


def moved(networks: _Networks, scale: float = 0.1) -> _Networks:
  """The networks, whose zeros and ones have become other numbers."""
  random = np.random.default_rng(1)
  for v in [v for network in networks for v in network.trainable_variables]:
    v.assign(v + scale * random.normal(size=v.shape))
  return networks


def made(make: Callable[[], _Networks], policy: str = "float64") -> _Networks:
  """Networks in a policy, always of the same weights."""
  keras.utils.set_random_seed(0)
  keras.config.set_dtype_policy(policy)
  networks = make()
  keras.config.set_dtype_policy("float32")
  return networks


def check_gradients(networks: Iterable[keras.Model], loss: Callable[[], tf.Tensor]) -> None:
  """The loss has a gradient by every variable."""
  with tf.GradientTape() as tape:
    value = loss()
  variables = [v for network in networks for v in network.trainable_variables]
  for variable, gradient in zip(variables, tape.gradient(value, variables), strict=True):
    assert gradient is not None and np.isfinite(gradient).all(), variable.path
    # A bias before batch normalization has no effect.
    assert variable.name == "bias" or np.any(gradient), variable.path


def slopes(variables: Sequence[tf.Variable], loss: Callable[[], tf.Tensor]) -> tuple[float, float]:
  """The slope of a loss along a random direction: by its gradient, and by finite differences."""
  random = np.random.default_rng(3)
  with tf.GradientTape() as tape:
    tape.watch(variables)
    value = loss()
  before, values = [v.numpy() for v in variables], []
  directions = [random.normal(size=v.shape) for v in variables]
  slope = sum(np.sum(gradient * direction) for gradient, direction in zip(
      tape.gradient(value, variables), directions, strict=True) if gradient is not None)
  for step in (1e-6, -1e-6):
    for v, start, direction in zip(variables, before, directions, strict=True):
      v.assign(start + step * direction)
    values.append(float(loss()))
  for v, start in zip(variables, before, strict=True):
    v.assign(start)
  assert abs(slope) > 1e-3
  return slope, (values[0] - values[1]) / 2e-6


def check_statistics(networks: Iterable[keras.Model], call: Callable[[bool], object]) -> None:
  """A call moves every statistic of the networks in training, and else none."""
  random = np.random.default_rng(5)
  statistics = [v for network in networks for v in network.non_trainable_variables
                if v.name != "u" or v.shape[-1] > 1]  # One output has no vector to follow.
  for v in statistics:
    v.assign(1 + random.uniform(size=v.shape))
  for training in (False, True):
    before = [v.numpy() for v in statistics]
    call(training)
    for v, value in zip(statistics, before, strict=True):
      assert np.array_equal(v, value) != training, v.path


def normalized(layer: keras.layers.Layer) -> np.ndarray:
  """A kernel divided by its largest singular value; also sets the layer's singular vector."""
  matrix = layer.kernel.numpy().reshape(-1, layer.kernel.shape[-1])
  _, singular_values, vectors = np.linalg.svd(matrix)
  layer.u.assign(vectors[:1])
  return layer.kernel.numpy() / singular_values[0]


def upsampled(x: tf.Tensor) -> tf.Tensor:
  """Each pixel four times."""
  return tf.repeat(tf.repeat(x, 2, axis=1), 2, axis=2)


def pooled(x: tf.Tensor) -> tf.Tensor:
  """Means over blocks of 2x2 pixels."""
  return (x[:, ::2, ::2] + x[:, 1::2, ::2] + x[:, ::2, 1::2] + x[:, 1::2, 1::2]) / 4


def standardized(x: tf.Tensor) -> tf.Tensor:
  """Batch normalization without factors and offsets."""
  mean, variance = tf.nn.moments(x, list(range(len(x.shape) - 1)))
  return (x - mean) / tf.sqrt(variance + 1e-5)


def batch_norm(x: tf.Tensor, layer: keras.layers.Layer) -> tf.Tensor:
  return standardized(x) * layer.gamma + layer.beta


def leaky(x: tf.Tensor) -> tf.Tensor:
  """TensorFlow's operation keeps its slope in float32."""
  return tf.where(x > 0, x, float(np.float32(0.2)) * x)


def spectral_conv(x: tf.Tensor, layer: keras.layers.Layer) -> tf.Tensor:
  """A convolution at full size, whose kernel has the exact largest singular value 1."""
  x = tf.nn.conv2d(x, normalized(layer), 1, "SAME")
  bias = getattr(layer.layer, "bias", None)
  return x if bias is None else x + bias


def residual_down(x: tf.Tensor, block: keras.layers.Layer, is_first: bool, halves: bool
                  ) -> tf.Tensor:
  """A block of a discriminator as in the papers: pooling after plain convolutions."""
  first, second = [layer for layer in block.residual if hasattr(layer, "layer")]
  h = spectral_conv(x if is_first else tf.nn.relu(x), first)
  h = spectral_conv(tf.nn.relu(h), second)
  shortcut = x if block.shortcut is None else spectral_conv(x, block.shortcut)
  return pooled(h) + pooled(shortcut) if halves else h + shortcut
