"""Layers of a network, and operations that TensorFlow cannot differentiate."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from replicator.internals.keras_internals import layers_in
from replicator.internals.tensorflow_internals import has_gradient


def layers_of(network: Any, kinds: tuple[type, ...]) -> list[keras.layers.Layer]:
  """The layers of these kinds in a network, however deep; none if it is a mere function."""
  if not isinstance(network, keras.layers.Layer):
    return []
  return [layer for layer in layers_in(network) if isinstance(layer, kinds)]


@contextlib.contextmanager
def operations_without_gradient() -> Iterator[set[str]]:
  """A context that ends with the types of its operations that have no gradient.

  The set is empty until the context ends. In eager mode it stays empty: there is no graph to look
  at, and TensorFlow itself will name the operation.
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
