"""A model of Keras' own layers and operations that computes the same as a function.

It loads without the code of the function, and other tools can read it.
"""

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from models.export.graph import FrozenGraph
from models.export.keras_rules import LAYERS, OPERATIONS, NoRule
from replicator import UsageError


def plain_model(name: str, function: Callable[..., tf.Tensor], inputs: Sequence[tf.TensorSpec]
                ) -> keras.Model:
  """Makes the model. Its inputs have the names and the shapes `[None, ...]` of the arguments.

  Constant kernels and their biases become weights of layers. Other constants, which are small, are
  arguments of operations.

  Raises:
    UsageError: there is no rule for an operation; the line names it.
  """
  # With one example all sizes are known, and constants that have a row for each example broadcast.
  graph = FrozenGraph(function, [
      tf.TensorSpec([1, *each.shape[1:]], each.dtype, each.name) for each in inputs])
  made = [keras.Input(each.shape[1:], dtype=each.dtype.name, name=each.name) for each in inputs]
  values: dict[str, Any] = dict(graph.constants)
  values.update((each.name, symbol) for each, symbol in zip(graph.inputs, made, strict=True))
  users = _users(graph.operations)
  for operation in graph.operations:
    if operation.outputs[0].name in values:  # The layer in front of it adds the bias.
      continue
    try:
      values.update(_results(operation, values, users))
    except NoRule as error:
      raise UsageError(
          f"{name}: Keras has nothing for {operation.type} '{operation.name}', {error}; write "
          "--formats=savedmodel, which holds any network") from error
  return keras.Model(made if len(made) > 1 else made[0], values[graph.output.name], name=name)


def _users(operations: Sequence[tf.Operation]) -> Mapping[str, list[tf.Operation]]:
  """The operations that take a tensor, by its name."""
  users = collections.defaultdict(list)
  for operation in operations:
    for each in operation.inputs:
      users[each.name].append(operation)
  return users


def _results(operation: tf.Operation, values: Mapping[str, Any],
             users: Mapping[str, list[tf.Operation]]) -> dict[str, Any]:
  """The symbolic results of an operation, by name; with that of its bias, if it has one."""
  arguments = [values[each.name] for each in operation.inputs]
  if operation.type in LAYERS:
    make, place, kernel_place = LAYERS[operation.type]
    kernel = arguments[kernel_place]
    if isinstance(kernel, np.ndarray):
      name, bias = _bias(operation, values, users)
      layer, weights = make(operation, kernel, use_bias=bias is not None,
                            dtype=operation.outputs[0].dtype.name)
      result = layer(arguments[place])
      layer.set_weights([weights] if bias is None else [weights, bias])
      return {operation.outputs[0].name: result, name: result}
  if operation.type not in OPERATIONS:
    raise NoRule("an operation that is not known here")
  results = OPERATIONS[operation.type](operation, *arguments)
  several = results if isinstance(results, list | tuple) else [results]
  return {each.name: made for each, made in zip(operation.outputs, several, strict=True)}


def _bias(operation: tf.Operation, values: Mapping[str, Any],
          users: Mapping[str, list[tf.Operation]]) -> tuple[str, np.ndarray | None]:
  """The constant that the one user of a result adds, and the name of the sum.

  Without such a user: None, and the name of the result.
  """
  output = operation.outputs[0]
  match users[output.name]:
    case [adds] if adds.type in ("BiasAdd", "AddV2"):
      value = values.get(adds.inputs[1].name)
      if isinstance(value, np.ndarray) and value.shape == (output.shape[-1],):
        return adds.outputs[0].name, value
  return output.name, None
