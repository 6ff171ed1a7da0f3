"""What an actor must not forget, in variables: saved as all others, equal on every replica."""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import keras
import numpy as np
import tensorflow as tf

from replicator.step.replicated import copies_of

S = TypeVar("S")
RECENT = 10
"""Of how many finished episodes the returns are kept, the newest last."""


class KeptState(tf.Module, Generic[S]):
  """The fields of a dataclass, each in a variable of which every replica has a copy.

  Args:
    start: how they begin: whole numbers and arrays.

  Attributes:
    fields: the variables by name.
  """

  def __init__(self, start: S):
    super().__init__()
    self._kind = type(start)
    self.fields = {name: _variable(name, value) for name, value in vars(start).items()}

  def read(self) -> S:
    """The present values; arrays are copies, which may be changed."""
    values: dict[str, Any] = {}
    for name, variable in self.fields.items():
      value = _value_of(variable)
      values[name] = value if value.ndim else int(value)
    return self._kind(**values)

  def holds(self, state: S, *names: str) -> bool:
    """Whether some fields are those of `state`; not so after a checkpoint was restored."""
    return all(np.array_equal(_value_of(self.fields[name]), getattr(state, name))
               for name in names)

  def write(self, state: S, changed: Mapping[str, np.ndarray] | None = None) -> None:
    """Writes a state into every copy.

    Args:
      state: what is to be kept.
      changed: for fields that are large a mask of their shape: what of them is to be written.
    """
    for name, variable in self.fields.items():
      value = getattr(state, name)
      if changed and name in changed:
        where, value = np.argwhere(changed[name]), value[changed[name]]
        for copy in copies_of(variable):
          _scatter(copy, where, value)
      else:
        for copy in copies_of(variable):
          copy.assign(value)


def mean_return(recent_returns: tf.Variable, episodes: tf.Variable) -> tf.Tensor:
  """Of the last episodes: the mean of float64 [10] that begin as zeros; floating []."""
  number = tf.clip_by_value(episodes, 1, RECENT)
  mean = tf.reduce_sum(recent_returns) / tf.cast(number, recent_returns.dtype)
  return tf.cast(mean, keras.config.floatx())


def _variable(name: str, value: Any) -> tf.Variable:
  return tf.Variable(value, trainable=False, dtype=np.asarray(value).dtype, name=name,
                     aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)


def _value_of(variable: tf.Variable) -> np.ndarray:
  return np.array(copies_of(variable)[0].read_value())


@tf.function(autograph=False, reduce_retracing=True)
def _scatter(variable: tf.Variable, where: tf.Tensor, values: tf.Tensor) -> None:
  # Compiled: eagerly TensorFlow cannot do it to a variable of a parameter server.
  variable.scatter_nd_update(where, values)
