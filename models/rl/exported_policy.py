"""A policy as data: another process can act with it, without the code that made it.

The computation is TensorFlow's graph of it, sent once; the weights are the values of what it
reads, taken again whenever they have changed.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from replicator import UsageError
from replicator.step.replicated import copies_of

Act = Callable[[Any, Any], Any]


class ExportedPolicy:
  """The graph of a policy, and the weights that it has at any moment.

  Args:
    act: a `tf.function`: `observations [n, *shape], noise float32 [n, a] -> actions [n, a]`.
    observation_shape: of one observation.
    observation_dtype: of observations.
    action_size: a.

  Attributes:
    graph: for `imported`.

  Raises:
    UsageError: it reads something that is neither a variable nor a number.
  """

  def __init__(self, act: Act, observation_shape: tuple[int, ...], observation_dtype: str,
               action_size: int):
    traced = act if hasattr(act, "get_concrete_function") else tf.function(act, autograph=False)
    concrete = traced.get_concrete_function(
        tf.TensorSpec([None, *observation_shape], observation_dtype),
        tf.TensorSpec([None, action_size], tf.float32))
    variables = {id(copy.handle): copy for v in concrete.graph.variables for copy in copies_of(v)}
    self._read = [_reader(captured, variables) for captured in concrete.captured_inputs]
    definition = concrete.graph.as_graph_def()
    for node in (*definition.node, *(n for f in definition.library.function for n in f.node_def)):
      node.device = ""  # The other process has devices of its own.
    names = [tensor.name for tensor in (*concrete.inputs, *concrete.outputs)]
    self.graph: tuple[bytes, list[str]] = definition.SerializeToString(), names

  def weights(self) -> list[np.ndarray]:
    """What the policy reads, as it is now."""
    return [read() for read in self._read]


def imported(graph: tuple[bytes, list[str]], weights: list[np.ndarray]
             ) -> tuple[Act, Callable[[list[np.ndarray]], None]]:
  """A policy in another process.

  Args:
    graph: of an `ExportedPolicy`.
    weights: its first ones.

  Returns:
    the policy, from arrays to an array; and a function that gives it other weights.
  """
  serialized, names = graph
  definition = tf.compat.v1.GraphDef.FromString(serialized)
  by_name = {node.name: node for node in definition.node}
  is_variable = [by_name[name.split(":")[0]].attr["dtype"].type == tf.resource.as_datatype_enum
                 for name in names[2:-1]]
  variables = [tf.Variable(value) for value in weights]

  @tf.function(autograph=False)
  def call(observations: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    here = tf.compat.v1.get_default_graph()
    values = [here.capture(v.handle) if is_read else v.read_value()
              for v, is_read in zip(variables, is_variable, strict=True)]
    given = dict(zip(names[:-1], [observations, noise, *values], strict=True))
    return tf.graph_util.import_graph_def(definition, given, names[-1:], name="")[0]

  def policy(observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
    return call(tf.constant(observations), tf.constant(noise)).numpy()

  def load(values: list[np.ndarray]) -> None:
    for variable, value in zip(variables, values, strict=True):
      variable.assign(value)

  return policy, load


def _reader(captured: tf.Tensor, variables: dict[int, tf.Variable]) -> Callable[[], np.ndarray]:
  if captured.dtype != tf.resource:
    return captured.numpy
  if id(captured) not in variables:
    raise UsageError("ActorPool: the policy reads a table or the like, which no other process has; "
                     "make it read tf.Variables alone, or write processes = 0")
  return variables[id(captured)].numpy
