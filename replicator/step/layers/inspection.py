"""The layers of a network, their kernels, and operations that have no gradient."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from replicator.errors import UsageError
from replicator.internals.keras_internals import layers_in
from replicator.internals.tensorflow_internals import has_gradient

import keras
import tensorflow as tf

# In the kernels of these layers, the outputs are not on the last axis.
_TRANSPOSED = (keras.layers.Conv1DTranspose, keras.layers.Conv2DTranspose,
               keras.layers.Conv3DTranspose)
_DEPTHWISE = (keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D)


def layers_of(network: Any, kinds: tuple[type, ...]) -> list[keras.layers.Layer]:
  """Returns the layers of these types in a network, at any depth; [] for a plain function."""
  if not isinstance(network, keras.layers.Layer):
    return []
  return [layer for layer in layers_in(network) if isinstance(layer, kinds)]


def kernel_matrix(layer: keras.layers.Layer, kernel: tf.Tensor) -> tf.Tensor:
  """Returns the kernel of a layer as a matrix `[rows, num_outputs]` with a column per output.

  Raises:
    UsageError: see `num_outputs`.
  """
  outputs = num_outputs(layer, kernel.shape)
  if isinstance(layer, _TRANSPOSED):
    kernel = tf.linalg.matrix_transpose(kernel)
  return tf.reshape(kernel, [-1, outputs])


def num_outputs(layer: keras.layers.Layer, shape: Sequence[int]) -> int:
  """Returns the number of outputs of a layer whose kernel has this shape.

  Raises:
    UsageError: the layer is an EinsumDense, whose output axes depend on its equation.
  """
  if isinstance(layer, keras.layers.EinsumDense):
    raise UsageError(f"the kernel of EinsumDense '{layer.name}' is a matrix only together with its "
                     "equation; use keras.layers.Dense")
  if isinstance(layer, _DEPTHWISE):
    return shape[-2] * shape[-1]
  return shape[-2 if isinstance(layer, _TRANSPOSED) else -1]


@contextlib.contextmanager
def operations_without_gradient() -> Iterator[set[str]]:
  """Collects the types of operations in the body that have no gradient.

  The set is filled when the body ends. In eager mode it stays empty: there is no graph to inspect,
  and TensorFlow's own error names the operation.
  """
  found: set[str] = set()
  if tf.executing_eagerly():
    yield found
    return
  graph = tf.compat.v1.get_default_graph()
  before = len(graph.get_operations())
  yield found
  found.update(operation.type for operation in graph.get_operations()[before:]
               if not has_gradient(operation))
