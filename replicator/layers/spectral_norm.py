"""Spectral normalization of a layer's kernel."""

import keras
import tensorflow as tf

from replicator.layers import layer_state
from replicator.step import context


class SpectralNorm(keras.layers.Wrapper):
  """Divides a layer's kernel by its largest singular value (Miyato et al. 2018).

      W_normalized = W / sigma(W),  sigma(W) = v^T W u

  The kernel `[..., c]` is seen as a matrix `[prod(...), c]`. A power iteration in each training
  call follows the leading singular vectors u and v; with micro-batches, one per batch. As in the
  paper, the vectors are constants for the gradient. All replicas hold the same kernel and compute
  the same vectors, so no collective is needed. The kernel variable itself is never overwritten.

  Args:
    layer: a Keras layer with a `kernel` (dense, convolutions) or `embeddings` variable.
    power_iterations: the number of power iterations per training call.
    epsilon: a small number that keeps the norms of the vectors above zero.

  Raises:
    ValueError: the layer has neither `kernel` nor `embeddings`.
  """

  def __init__(self, layer: keras.layers.Layer, power_iterations: int = 1,
               epsilon: float = 1e-12, **kwargs):
    kwargs.setdefault("dtype", layer.variable_dtype)  # A mixed policy would round the kernel.
    super().__init__(layer, autocast=False, **kwargs)
    self.power_iterations = power_iterations
    self.epsilon = epsilon

  def build(self, input_shape=None):
    super().build(input_shape)
    for name in ("kernel", "embeddings"):
      if hasattr(self.layer, name):
        self.kernel = getattr(self.layer, name)
        break
    else:
      raise ValueError(f"SpectralNorm: {self.layer} has neither 'kernel' nor 'embeddings'")
    shape = (1, self.kernel.shape[-1])
    self.u = layer_state.variable("u", shape, "random_normal", self.variable_dtype)

  def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
    normalized = self.kernel.value / self._spectral_norm(training)
    # The other variables are passed on, because an enclosing scope may have replaced them, as
    # averaged weights do.
    values = [(v, v.value) for v in self.layer.variables if v is not self.kernel]
    with keras.StatelessScope([*values, (self.kernel, normalized)], initialize_variables=False):
      return self.layer(inputs)

  def _spectral_norm(self, training: bool) -> tf.Tensor:
    matrix = tf.reshape(self.kernel.value, [-1, self.kernel.shape[-1]])
    constant = tf.stop_gradient(matrix)
    if training:
      u, v = context.once(lambda: self._iterate(constant))
    else:
      u = self.u.value
      v = self._unit(tf.matmul(u, constant, transpose_b=True))
    norm = tf.reduce_sum(tf.matmul(tf.stop_gradient(v), matrix) * tf.stop_gradient(u))
    if training:
      context.signal(self, lambda: {"sigma": norm})
    return norm

  def _iterate(self, matrix: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Moves u toward the leading right singular vector; returns it and the left one as rows."""
    u = self.u.value
    v = self._unit(tf.matmul(u, matrix, transpose_b=True))
    for _ in range(self.power_iterations):
      v = self._unit(tf.matmul(u, matrix, transpose_b=True))
      u = self._unit(tf.matmul(v, matrix))
    self.u.assign(u)
    return u, v

  def _unit(self, vector: tf.Tensor) -> tf.Tensor:
    return vector * tf.math.rsqrt(tf.reduce_sum(tf.square(vector)) + self.epsilon)

  def compute_output_shape(self, input_shape):
    return self.layer.compute_output_shape(input_shape)
