"""State of an actor in variables: checkpoints save it, and every replica has an equal copy."""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from replicator import replicated

import keras
import numpy as np
import tensorflow as tf

S = TypeVar("S")
RECENT = 10
"""The number of finished episodes whose returns a state keeps, the newest last."""


class SavedState(tf.Module, Generic[S]):
  """The fields of a dataclass, each in a variable of which every replica has a copy.

  The initial values are integers and arrays, or None for a field that is never used. Among the
  `fields`, which are variables by name, are `episodes`, an integer, and `recent_returns`, float64
  [RECENT].
  """

  def __init__(self, start: S):
    super().__init__()
    self._kind = type(start)
    self.fields = {name: replicated.variable(value, name=name)
                   for name, value in vars(start).items() if value is not None}

  def read(self) -> S:
    """The present values. Arrays are copies that the caller may change."""
    values: dict[str, Any] = {}
    for name, variable in self.fields.items():
      value = replicated.read(variable)
      values[name] = value if value.ndim else int(value)
    return self._kind(**values)

  def holds(self, state: S, *names: str) -> bool:
    """Whether some fields equal those of `state`. After a restored checkpoint they do not."""
    return all(np.array_equal(replicated.read(self.fields[name]), getattr(state, name))
               for name in names)

  def write(self, state: S, changed: Mapping[str, np.ndarray] | None = None) -> None:
    """Writes a state into every copy.

    For large fields, `changed` has a mask of the field's shape: True where the value is new.
    """
    for name, variable in self.fields.items():
      where = changed.get(name) if changed else None
      replicated.assign(variable, getattr(state, name), where)

  def scalars(self, *names: str) -> dict[str, tf.Tensor]:
    """Scalars for a step to log, []: the variables of these names, and `episode_return`.

    This floating number is the mean return of the last 10 finished episodes, 0 before the first.
    """
    returns = self.fields["recent_returns"]
    number = tf.clip_by_value(self.fields["episodes"], 1, RECENT)
    mean = tf.reduce_sum(returns) / tf.cast(number, returns.dtype)
    return {**{name: self.fields[name] for name in names},
            "episode_return": tf.cast(mean, keras.config.floatx())}

