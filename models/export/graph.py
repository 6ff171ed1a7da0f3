"""The graph of a function, with everything independent of its arguments as constants."""

from collections.abc import Callable, Sequence

from replicator import UsageError

import numpy as np
import tensorflow as tf


class FrozenGraph:
  """The operations of a function that depend on its arguments, with constants for all others.

  Everything that depends only on variables is computed once: averaged weights, spectrally
  normalized kernels, folded kernels, the factors of batch normalization.

  Args:
    function: tensors -> a tensor. Functions that it calls may be compiled.
    inputs: the shapes, dtypes and names of its arguments.

  Attributes:
    inputs: the symbolic arguments.
    output: the symbolic result.
    uses: for each argument, whether the result depends on it.
    operations: the operations between the two, in topological order.
    constants: the values of the other inputs of these operations, by name.

  Raises:
    UsageError: the function has a loop that reads variables or collects results.
  """

  def __init__(self, function: Callable[..., tf.Tensor], inputs: Sequence[tf.TensorSpec]):
    eagerly = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)  # So that the graph has no function calls.
    try:
      wrapped = tf.compat.v1.wrap_function(function, list(inputs))
    finally:
      tf.config.run_functions_eagerly(eagerly)
    self.inputs: list[tf.Tensor] = wrapped.inputs[:len(inputs)]
    self.output: tf.Tensor = wrapped.outputs[0]
    self._graph = wrapped.graph
    operations = wrapped.graph.get_operations()  # In topological order.
    depend = {each.op.name for each in self.inputs}
    for operation in operations:
      if any(each.op.name in depend for each in operation.inputs):
        depend.add(operation.name)
    needed = {self.output.op.name}
    for operation in reversed(operations):
      if operation.name in needed:
        needed.update(each.op.name for each in operation.inputs)
    self.operations = [operation for operation in operations
                       if operation.inputs and operation.name in depend & needed]
    taken = {each.name for operation in self.operations for each in operation.inputs}
    self.uses: list[bool] = [each.name in taken for each in self.inputs]
    fixed = {each.name: each for operation in self.operations for each in operation.inputs
             if each.op.name not in depend}
    if any(each.dtype in (tf.variant, tf.resource) for each in fixed.values()):
      raise UsageError("a loop that reads variables, or collects results as tf.scan does, cannot "
                       "be exported; give the recurrent layer unroll=True, or use --networks to "
                       "export only the network that the loop calls")
    values = wrapped.prune([], list(fixed.values()))() if fixed else []
    self.constants: dict[str, np.ndarray] = {
        name: value.numpy() for name, value in zip(fixed, values, strict=True)}

  def imported(self, inputs: Sequence[tf.Tensor], constants: dict[str, tf.Tensor]) -> tf.Tensor:
    """Imports the operations into the current graph, with constants by name; returns the result.
    """
    definition = self._graph.as_graph_def()
    needed = {operation.name for operation in self.operations}
    nodes = [node for node in definition.node if node.name in needed]
    del definition.node[:]
    definition.node.extend(nodes)
    given = {each.name: value for each, value in zip(self.inputs, inputs, strict=True)}
    [result] = tf.graph_util.import_graph_def(definition, {**given, **constants},
                                              [self.output.name], name="")
    return result
