"""A policy as data, with which another process can act without the code that made it.

The policy's TensorFlow graph is sent once. The weights, the values that the graph reads, are sent
whenever they change.
"""

from collections.abc import Callable

from models.rl.acting.memory import Act
from replicator import UsageError, replicated
from replicator.strategies.tracing import graphs

import numpy as np
import tensorflow as tf


class ExportedPolicy:
  """The graph and the current weights of a policy.

  The policy `act` is a `tf.function`, see `memory.Act`. `graph` is an argument of `imported`.
  Raises a UsageError if it reads anything other than variables and numbers.
  """

  def __init__(self, act: Act, observation_shape: tuple[int, ...], observation_dtype: str,
               noise_size: int):
    traced = act if hasattr(act, "get_concrete_function") else tf.function(act, autograph=False)
    concrete = traced.get_concrete_function(
        tf.TensorSpec([None, *observation_shape], observation_dtype),
        tf.TensorSpec([None, noise_size], tf.float32))
    if calls := graphs.python_calls(concrete.graph):
      raise UsageError(f"ActorPool: the policy calls {calls[0]}, whose Python code other processes "
                       "do not have; use TensorFlow operations, or set make_actor.processes = 0")
    variables = {id(copy.handle): copy for v in concrete.graph.variables
                 for copy in replicated.copies_of(v)}
    self._read = [_reader(captured, variables) for captured in concrete.captured_inputs]
    definition = concrete.graph.as_graph_def()
    for node in (*definition.node, *(n for f in definition.library.function for n in f.node_def)):
      node.device = ""  # The other process has its own devices.
    names = [tensor.name for tensor in (*concrete.inputs, *concrete.outputs)]
    self.graph: tuple[bytes, list[str]] = definition.SerializeToString(), names

  def weights(self) -> list[np.ndarray]:
    """Returns the current values of everything that the policy reads."""
    return [read() for read in self._read]


def imported(graph: tuple[bytes, list[str]], weights: list[np.ndarray]
             ) -> tuple[Act, Callable[[list[np.ndarray]], None]]:
  """Imports a policy in another process, given an `ExportedPolicy`'s graph and initial weights.

  Returns the policy, from arrays to an array, and a function that loads new weights into it.
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
    raise UsageError("ActorPool: the policy reads a table or a similar resource, which other "
                     "processes do not have; read only tf.Variables in it, or set processes = 0")
  return variables[id(captured)].numpy
