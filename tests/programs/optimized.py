"""The graph of a `tf.function` when TensorFlow has optimized it."""

import collections
import contextlib
from collections.abc import Iterator

from tensorflow.python.eager import context

GROUP = "_XlaRun"  # Runs a program that XLA compiled from a group of marked operations.
FUNCTION = "XLA function"  # Calls a tf.function(jit_compile=True).
Operations = dict[str, collections.Counter[str]]


@contextlib.contextmanager
def graphs() -> Iterator[Operations]:
  """Counts the types of operations by device, of functions that the body calls first; after it."""
  found: Operations = collections.defaultdict(collections.Counter)
  context.context().enable_graph_collection()
  try:
    yield found
    functions = context.context().export_run_metadata().function_graphs
  finally:
    context.context().disable_graph_collection()
  for node in (node for function in functions for node in function.post_optimization_graph.node):
    device = node.device.rpartition("device:")[2]
    found[device][FUNCTION if node.attr["_XlaMustCompile"].b else node.op] += 1
