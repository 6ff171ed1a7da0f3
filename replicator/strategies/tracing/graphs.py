"""The operations in the graph of a step, and the lines of user code that made them."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

from replicator.errors import is_of_user
from replicator.internals import tensorflow_internals
from replicator.step.replicated import copies_of

import keras
import tensorflow as tf

_WRITES = ("Assign", "ResourceScatter", "ResourceStridedSliceAssign", "ResourceApply",
           "ResourceSparseApply", "RngReadAndSkip", "RngSkip", "StatefulUniform")
_FEWEST_CHANNELS = 16  # With at least this many, the gradient of a convolution is correct.


def place(frames: Sequence) -> str:
  """Returns ` at file:line`, the innermost line of user code in a traceback, or ''."""
  own = [frame for frame in frames if is_of_user(frame.filename)]
  return f" at {os.path.relpath(own[-1].filename)}:{own[-1].lineno}" if own else ""


def operations(graph: Any) -> Iterator[Any]:
  """Yields all operations of a graph, after those of the graphs it calls."""
  for called in tensorflow_internals.graphs_called_by(graph):
    yield from operations(called)
  yield from graph.get_operations()


def has_loop(graph: Any) -> bool:
  """Returns whether a graph has a loop, such as that of micro-batches or a recurrent layer."""
  return any(operation.type in ("While", "StatelessWhile") for operation in operations(graph))


def adapt_optimizations(graph: Any) -> None:
  """Disables the optimizations of TensorFlow that fail on a graph, in this thread from now on."""
  if has_loop(graph):
    keep_order()
  if any(operation.type in ("Relu", "Elu") and _is_sum_with_product(operation.inputs[0].op)
         for operation in operations(graph)):
    # TensorFlow (2.21) fails to fuse these operations on CPUs: it logs errors, and fuses nothing.
    keep_unfused()


def _is_sum_with_product(operation: tf.Operation) -> bool:
  """Returns whether an operation adds something to the output of a dense layer with a bias."""
  return operation.type == "AddV2" and any(
      x.op.type == "BiasAdd" and x.op.inputs[0].op.type == "MatMul" for x in operation.inputs)


def keep_order() -> None:
  """Makes loops see earlier writes, in all graphs that this thread calls from now on.

  TensorFlow's dependency optimization (2.21) loses the order of an update and a later loop, so the
  loop sometimes reads stale weights. Disabling it makes a small step take up to 1.4 times as long,
  so it stays on where there is no loop.
  """
  tf.config.optimizer.set_experimental_options({"dependency_optimization": False})


def add_in_order() -> None:
  """Makes sums of several tensors bitwise reproducible, in all graphs from now on.

  TensorFlow's arithmetic optimization turns additions into an AddN; see `add_in_order` of
  `tensorflow_internals`.
  """
  tensorflow_internals.add_in_order()
  tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})


@contextlib.contextmanager
def unoptimized() -> Iterator[None]:
  """Disables the optimization of graphs that this thread calls in the body.

  Optimizing a graph takes longer than computing a few examples once.
  """
  before = tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False)
  tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
  try:
    yield
  finally:
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": before})


def keep_unfused() -> None:
  """Keeps TensorFlow from fusing operations, in all graphs this thread calls from now on.

  XLA, which does its own fusion, cannot compile fused operations such as _FusedMatMul.
  """
  tf.config.optimizer.set_experimental_options({"remapping": False})


def python_calls(graph: Any) -> list[str]:
  """Lists the calls of Python functions in a graph, such as `tf.py_function at file:line`."""
  return list(dict.fromkeys(
      f"tf.{'py' if 'Eager' in operation.type else 'numpy'}_function{place(operation.traceback)}"
      for operation in operations(graph) if "PyFunc" in operation.type))


def assignments(graph: Any, variable: Any) -> Iterator[str]:
  """Yields the `place` of each write of a variable in a graph; '' if it is unknown."""
  return (place(operation.traceback) for _, operation in writes(graph, [variable]))


def first_use(graph: Any, variable: Any) -> str:
  """Returns the `place` of the first use of a variable in a graph; '' if it is unknown."""
  places = (place(operation.traceback) for _, operation in _uses(graph, [variable]))
  return next(filter(None, places), "")


def writes(graph: Any, variables: Sequence) -> Iterator[tuple[Any, tf.Operation]]:
  """Yields (variable, operation) for each write of TensorFlow or Keras variables in a graph."""
  return ((variable, operation) for variable, operation in _uses(graph, variables)
          if operation.type.startswith(_WRITES))


def read(graph: Any, variables: Sequence) -> set[int]:
  """Returns the ids of the TensorFlow or Keras variables among `variables` that a graph uses."""
  return {id(v) for _, v in _captured(graph, variables)}


def _captured(graph: Any, variables: Sequence) -> Iterator[tuple[tf.Tensor, Any]]:
  """Yields the handles of the given variables inside a graph, each with its variable."""
  of_handle = {id(copy.handle): v for v in variables
               for copy in copies_of(v.value if isinstance(v, keras.Variable) else v)}
  return ((inside, of_handle[id(outside)]) for outside, inside in graph.captures
          if id(outside) in of_handle)


def _uses(graph: Any, variables: Sequence) -> Iterator[tuple[Any, tf.Operation]]:
  """Yields (variable, operation) for each operation in a graph on the handle of a variable."""
  return _uses_of(graph, {inside.name: v for inside, v in _captured(graph, variables)})


def _uses_of(graph: Any, names: dict[str, Any]) -> Iterator[tuple[Any, tf.Operation]]:
  """Yields (object, operation) for each operation on the resource with the name of an object."""
  for operation in graph.get_operations() if names else ():
    functions = tensorflow_internals.graphs_called_by(graph, operation)
    if not functions and operation.inputs and operation.inputs[0].name in names:
      yield names[operation.inputs[0].name], operation
    for called in functions:
      # A branch gets all inputs but the first, which selects the branch.
      passed = operation.inputs[len(operation.inputs) - len(called.inputs):]
      yield from _uses_of(called, {inside.name: names[outside.name] for outside, inside in zip(
          passed, called.inputs, strict=True) if outside.name in names})


def warnings(graph: Any, jit_compile: bool) -> list[str]:
  """Returns warnings about the graph of a step."""
  lines = [f"{call}: checkpoints do not contain the state of its Python code; compute with "
           "TensorFlow, and keep state in a tf.Variable that is an attribute of the step"
           for call in python_calls(graph)]
  if not jit_compile:
    lines += [f"{name}: on CPUs its gradient may be wrong or crash the process, a oneDNN bug "
              "with a stride and fewer than 16 input channels; pass it every second pixel, "
              "x[:, ::2, ::2] for strides=2, and use strides=1"
              for name in unsafe_convolutions(graph)]
  return lines


def unsafe_convolutions(graph: Any) -> list[str]:
  """Lists the convolutions whose gradient in a graph is unsafe on CPUs, with their places.

  oneDNN, which computes convolutions on CPUs, writes out of bounds in the gradient of a strided
  1x1 kernel with few input channels (github.com/uxlfoundation/oneDNN/issues/6035, seen in
  TensorFlow 2.21 with AVX-512). The process crashes, or continues with wrong numbers. The list is
  empty if oneDNN does not compute them: in float64, on other devices, or if it is off.
  """
  is_cpu = all(device.device_type == "CPU" for device in tf.config.list_physical_devices())
  if os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0" or not is_cpu:
    return []
  found = list(operations(graph))
  differentiated = [operation.outputs[0].shape for operation in found
                    if operation.type == "Conv2DBackpropFilter"]
  return list(dict.fromkeys(
      f"a convolution with the kernel {list(operation.inputs[1].shape)}"
      f"{place(operation.traceback)}" for operation in found
      if operation.type == "Conv2D" and _is_unsafe(operation)
      and operation.inputs[1].shape in differentiated))


def _is_unsafe(convolution: tf.Operation) -> bool:
  kernel = convolution.inputs[1]
  return (max(convolution.get_attr("strides")) > 1 and kernel.dtype != tf.float64
          and kernel.shape.is_fully_defined() and kernel.shape[:2] == [1, 1]
          and kernel.shape[2] < _FEWEST_CHANNELS)
