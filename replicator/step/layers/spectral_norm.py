"""Spectral normalization of a layer's kernel."""

from typing import Any

from replicator.errors import UsageError
from replicator.internals import keras_internals
from replicator.step import context, replicated, xla
from replicator.step.layers.inspection import kernel_matrix, num_outputs

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable("replicator")
class SpectralNorm(keras.layers.Wrapper):
  """A wrapper that divides a layer's kernel by its largest singular value (Miyato et al. 2018).

      W_normalized = W / sigma(W),  sigma(W) = v^T W u,  v = W u / |W u|

  The kernel is treated as a matrix `[rows, columns]` with a column for each output, as in the paper
  and in PyTorch:

  | layer | kernel | matrix |
  | --- | --- | --- |
  | `Dense` | `[i, o]` | `[i, o]` |
  | `Conv1D`, `Conv2D`, `Conv3D`, also with groups | `[..., i, o]` | `[... i, o]` |
  | `Conv1DTranspose`, `Conv2DTranspose`, `Conv3DTranspose` | `[..., o, i]` | `[... i, o]` |
  | `DepthwiseConv1D`, `DepthwiseConv2D` | `[..., i, m]` | `[..., i m]` |
  | `Embedding` | `[num, dim]` | `[num, dim]` |
  | any other layer with a `kernel`, such as your own | `[..., o]` | `[..., o]` |

  Each training call makes one power iteration for the leading singular vector u; with
  micro-batches, one per batch. A call without training computes sigma from the current u; with
  micro-batches, from the u of the first one. As in the paper, gradients treat the vectors as
  constants. All replicas hold the same kernel and compute the same vectors, so no collective is
  needed. The kernel variable itself is never overwritten. The kernel may have any scale; while it
  is zero, so is the normalized kernel, and u does not change. The wrapped layer's assignments and
  added losses are kept. A layer that is not `trainable` keeps its u.

  Args:
    layer: a Keras layer with a `kernel` (dense, convolutions) or `embeddings` variable.
    power_iterations: the number of power iterations per training call.

  Raises:
    UsageError: the layer has no kernel or several, its kernel cannot be treated as such a matrix,
      or Keras recomputes its call.
  """

  def __init__(self, layer: keras.layers.Layer, power_iterations: int = 1, **kwargs):
    kwargs.setdefault("dtype", layer.variable_dtype)  # A mixed policy would round the kernel.
    super().__init__(layer, autocast=False, **kwargs)
    self.power_iterations = power_iterations
    if keras_internals.is_recomputed(layer):
      raise UsageError(f"SpectralNorm: '{layer.name}' was created in a keras.RematScope, which "
                       "would recompute it with the unnormalized kernel; create it outside, and "
                       "call the network through replicator.recompute_grad")

  def get_config(self) -> dict[str, Any]:
    return {**super().get_config(), "power_iterations": self.power_iterations}

  def build(self, input_shape=None):
    super().build(input_shape)
    self.kernel = _kernel_of(self.layer)
    columns = num_outputs(self.layer, self.kernel.shape)
    self.u = replicated.layer_variable("u", (1, columns), "random_normal", self.variable_dtype)

  def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
    context.called(self, training)
    sigma = self._spectral_norm(training and self.trainable)
    normalized = self.kernel.value / tf.where(sigma > 0, sigma, tf.ones_like(sigma))
    with keras_internals.VariableScope(
        {**keras_internals.values_of_scope(), id(self.kernel): normalized}) as scope:
      outputs = self.layer(inputs)
    scope.assign()
    if scope.losses:
      self.add_loss(scope.losses)
    return outputs

  def _spectral_norm(self, training: bool) -> tf.Tensor:
    matrix = kernel_matrix(self.layer, tf.convert_to_tensor(self.kernel.value))
    if training and self.power_iterations:
      context.check_not_recomputed(f"SpectralNorm '{self.name}' would run its power iteration")
      u = context.once(lambda: self._iterate(tf.stop_gradient(matrix)))
    elif context.in_inner_graph():  # Later micro-batches cannot use a tensor of a branch.
      u = _unit(self.u.value)
    else:
      u = context.once(lambda: _unit(self.u.value))
    left = tf.matmul(tf.stop_gradient(u), matrix, transpose_b=True)
    norm = tf.reduce_sum(left * tf.stop_gradient(_unit(left)))
    if training:
      context.measured(self, lambda: {"sigma": norm})
    return norm

  def _iterate(self, matrix: tf.Tensor) -> tf.Tensor:
    """Moves u toward the leading right singular vector, and returns it as a row."""
    with xla.alike():
      u = self.u.value
      for _ in range(self.power_iterations):
        v = _unit(tf.matmul(u, matrix, transpose_b=True))
        u = _unit(tf.matmul(v, matrix), otherwise=u)
      self.u.assign(u)
    return u

  def compute_output_shape(self, input_shape):
    return self.layer.compute_output_shape(input_shape)


def _kernel_of(layer: keras.layers.Layer) -> keras.Variable:
  kernels = [v.name for v in layer.variables if v.name.endswith(("kernel", "embeddings"))]
  kernel = getattr(layer, "kernel", getattr(layer, "embeddings", None))
  if kernel is None or len(kernels) > 1:
    has = f"has the kernels {', '.join(kernels)}" if kernels else "has no kernel"
    raise UsageError(f"SpectralNorm: {type(layer).__name__} '{layer.name}' {has}; wrap layers "
                     "with exactly one 'kernel' or 'embeddings', such as Dense and convolutions")
  return kernel


def _unit(vector: tf.Tensor, otherwise: float | tf.Tensor = 0.0) -> tf.Tensor:
  """Returns `vector / |vector|`, or `otherwise` if the vector is zero or not finite."""
  # The squares of the vector itself may overflow a float32.
  near = tf.math.divide_no_nan(vector, tf.reduce_max(tf.abs(vector)))
  square = tf.reduce_sum(tf.square(near))
  return tf.where(square > 0, near * tf.math.rsqrt(square), otherwise)
