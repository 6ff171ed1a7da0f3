"""A model of Keras' own layers and operations that computes what a frozen graph computes.

It loads without the code that made the graph, and other tools can read it.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from models.export.graph import FrozenGraph, leading_to
from models.export.keras_rules import LAYERS, OPERATIONS, NoRule
from replicator.errors import UsageError

# The inputs that count, images before kernels. The others are sizes, which the static shape of the
# output has too.
_USED = {"Reshape": (0,), "AvgPoolGrad": (1,), "Conv2DBackpropInput": (2, 1)}


def plain_model(name: str, graph: FrozenGraph) -> keras.Model:
  """Makes the model, whose inputs have the names of the graph's.

  Constant kernels and their biases become weights of layers. Other constants, which are small, are
  arguments of operations.

  Raises:
    UsageError: there is no rule for an operation; the line names it.
  """
  inputs = [keras.Input(each.shape[1:], dtype=each.dtype.name, name=each.op.name)
            for each in graph.inputs]
  values: dict[str, Any] = dict(graph.constants)
  values.update((each.name, made) for each, made in zip(graph.inputs, inputs, strict=True))
  operations = leading_to(graph.output, graph.operations, _used)
  for operation in operations:
    if operation.outputs[0].name in values:  # The layer in front of it adds the bias.
      continue
    try:
      values.update(_results(operation, operations, values))
    except NoRule as error:
      raise UsageError(f"{name}: Keras has nothing for {operation.type} '{operation.name}', {error}; "
                       "write --formats=savedmodel, which holds any network") from error
  return keras.Model(inputs, values[graph.output.name], name=name)


def _used(operation: tf.Operation) -> list[tf.Tensor]:
  inputs = list(operation.inputs)
  return [inputs[i] for i in _USED.get(operation.type, range(len(inputs)))]


def _results(operation: tf.Operation, operations: list[tf.Operation], values: dict[str, Any]
             ) -> dict[str, Any]:
  """The symbolic results of an operation, by name; with that of its bias, if it has one."""
  arguments = [values[each.name] for each in _used(operation)]
  if operation.type in LAYERS and isinstance(arguments[1], np.ndarray):
    symbol, kernel = arguments
    bias = _bias(operation, operations, values)
    layer, kernel = LAYERS[operation.type](
        operation, kernel, use_bias=bias is not None, dtype=operation.outputs[0].dtype.name)
    result = layer(symbol)
    layer.set_weights([kernel] if bias is None else [kernel, bias[1]])
    return {operation.outputs[0].name: result, **({bias[0]: result} if bias else {})}
  if operation.type not in OPERATIONS:
    raise NoRule("an operation that is not known here")
  results = OPERATIONS[operation.type](operation, *arguments)
  several = results if isinstance(results, list | tuple) else [results]
  return {each.name: made for each, made in zip(operation.outputs, several, strict=True)}


def _bias(operation: tf.Operation, operations: list[tf.Operation], values: dict[str, Any]
          ) -> tuple[str, np.ndarray] | None:
  """The constant that the one operation behind this one adds, and the name of its result."""
  output = operation.outputs[0]
  behind = [each for each in operations if output.name in [i.name for i in _used(each)]]
  if len(behind) != 1 or behind[0].type not in ("BiasAdd", "AddV2"):
    return None
  [other] = [each for each in _used(behind[0]) if each.name != output.name]
  value = values.get(other.name)
  if isinstance(value, np.ndarray) and value.shape == (output.shape[-1],):
    return behind[0].outputs[0].name, value
  return None
