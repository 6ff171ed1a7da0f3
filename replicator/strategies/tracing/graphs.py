"""The operations in the graph of a step, and the user's lines that make them."""

import os
from collections.abc import Iterator, Sequence
from typing import Any

from replicator.errors import is_of_user
from replicator.internals.tensorflow_internals import graphs_called_by
from replicator.step.replicated import copies_of

import keras
import tensorflow as tf

_WRITES = ("Assign", "ResourceScatter", "ResourceStridedSliceAssign", "ResourceApply",
           "ResourceSparseApply", "RngReadAndSkip", "RngSkip", "StatefulUniform")
_FEWEST_CHANNELS = 16  # With these and more the gradient of a convolution is right.


def place(frames: Sequence) -> str:
  """` at file:line`, the innermost line of the user's own code in a traceback; or nothing."""
  own = [frame for frame in frames if is_of_user(frame.filename)]
  return f" at {os.path.relpath(own[-1].filename)}:{own[-1].lineno}" if own else ""


def operations(graph: Any) -> Iterator[Any]:
  """All operations of a graph, after those of the graphs that it calls."""
  for called in graphs_called_by(graph):
    yield from operations(called)
  yield from graph.get_operations()


def has_loop(graph: Any) -> bool:
  """Whether a graph has a loop, such as that of micro-batches or of a recurrent layer."""
  return any(operation.type in ("While", "StatelessWhile") for operation in operations(graph))


def keep_order() -> None:
  """Makes loops read what was written before them, in all graphs that this thread calls from now.

  TensorFlow's optimization of dependencies (2.21) loses the order of an update and a loop behind
  it, so that the loop reads old weights at random. Without it a small step takes up to 1.4 times as
  long, so that it stays on where there is no loop.
  """
  tf.config.optimizer.set_experimental_options({"dependency_optimization": False})


def keep_unfused() -> None:
  """Keeps TensorFlow from fusing operations, in all graphs that this thread calls from now.

  XLA has no program for a fused one, such as _FusedMatMul. It fuses by itself.
  """
  tf.config.optimizer.set_experimental_options({"remapping": False})


def python_calls(graph: Any) -> list[str]:
  """The calls of Python functions by a graph, such as `tf.py_function at file:line`."""
  return list(dict.fromkeys(
      f"tf.{'py' if 'Eager' in operation.type else 'numpy'}_function{place(operation.traceback)}"
      for operation in operations(graph) if "PyFunc" in operation.type))


def assignments(graph: Any, variable: Any) -> Iterator[str]:
  """The `place` of each write of a variable in a graph: nothing where that cannot be had."""
  return (place(operation.traceback) for _, operation in writes(graph, [variable]))


def first_use(graph: Any, variable: Any) -> str:
  """The `place` of the first use of a variable in a graph; nothing if that cannot be had."""
  places = (place(operation.traceback) for _, operation in _uses(graph, [variable]))
  return next(filter(None, places), "")


def writes(graph: Any, variables: Sequence) -> Iterator[tuple[Any, tf.Operation]]:
  """Each write of some variables, TensorFlow's or Keras', in a graph: the variable, and its write.
  """
  return ((variable, operation) for variable, operation in _uses(graph, variables)
          if operation.type.startswith(_WRITES))


def read(graph: Any, variables: Sequence) -> set[int]:
  """The ids of those of some variables, TensorFlow's or Keras', that a graph uses at all."""
  return {id(v) for _, v in _captured(graph, variables)}


def _captured(graph: Any, variables: Sequence) -> Iterator[tuple[tf.Tensor, Any]]:
  """The handles inside a graph of some variables, each with its variable."""
  of_handle = {id(copy.handle): v for v in variables
               for copy in copies_of(v.value if isinstance(v, keras.Variable) else v)}
  return ((inside, of_handle[id(outside)]) for outside, inside in graph.captures
          if id(outside) in of_handle)


def _uses(graph: Any, variables: Sequence) -> Iterator[tuple[Any, tf.Operation]]:
  """Each operation in a graph on the handle of one of some variables, with the variable."""
  return _uses_of(graph, {inside.name: v for inside, v in _captured(graph, variables)})


def _uses_of(graph: Any, names: dict[str, Any]) -> Iterator[tuple[Any, tf.Operation]]:
  """The operations on resources that have these names, with what each name stands for."""
  for operation in graph.get_operations() if names else ():
    functions = graphs_called_by(graph, operation)
    if not functions and operation.inputs and operation.inputs[0].name in names:
      yield names[operation.inputs[0].name], operation
    for called in functions:
      # A branch is called with all inputs but the first, which chooses it.
      passed = operation.inputs[len(operation.inputs) - len(called.inputs):]
      yield from _uses_of(called, {inside.name: names[outside.name] for outside, inside in zip(
          passed, called.inputs, strict=True) if outside.name in names})


def warnings(graph: Any, jit_compile: bool) -> list[str]:
  """Lines about what is in the graph of a step."""
  lines = [f"{call}: what its Python code keeps is in no checkpoint; compute with TensorFlow, and "
           "keep it in a tf.Variable that is an attribute of the step"
           for call in python_calls(graph)]
  if not jit_compile:
    lines += [f"{name}: on CPUs its gradient may be wrong or end the process, a fault of oneDNN's "
              "with a stride and fewer than 16 input channels; pass it every second pixel, "
              "x[:, ::2, ::2] for strides=2, and use strides=1"
              for name in unsafe_convolutions(graph)]
  return lines


def unsafe_convolutions(graph: Any) -> list[str]:
  """The convolutions whose gradient in a graph is unsafe on CPUs, with their places.

  oneDNN, which computes convolutions on CPUs, writes outside its memory in the gradient of a
  strided 1x1 kernel with few input channels (github.com/uxlfoundation/oneDNN/issues/6035, seen in
  TensorFlow 2.21 with AVX-512). The process crashes, or goes on with wrong numbers. The list is
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
