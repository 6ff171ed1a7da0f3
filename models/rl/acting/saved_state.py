"""State of an actor in variables, which checkpoints save and every replica copies."""

from collections.abc import Collection, Mapping
from typing import Any, Generic, TypeVar

from replicator import replicated

import keras
import numpy as np
import tensorflow as tf

S = TypeVar("S")
RECENT = 10
"""The number of finished episodes whose returns a state keeps, the newest last."""


class SavedState(tf.Module, Generic[S]):
  """The fields of a dataclass, each in a variable with a copy on every replica.

  Initial values are integers and arrays, or None for an unused field. The `fields`, variables by
  name, include `episodes`, an integer, and `recent_returns`, float64 [RECENT]. For arrays
  `[n, t, ...]` named in `grow`, t may change later.
  """

  def __init__(self, start: S, grow: Collection[str] = ()):
    super().__init__()
    self._kind = type(start)
    self.fields = {
        name: replicated.variable(
            value, name=name,
            shape=[len(value), None, *value.shape[2:]] if name in grow else None)
        for name, value in vars(start).items() if value is not None}

  def of_streams(self) -> list[tf.Variable]:
    """Returns the fields `[n, ...]` of current episodes, which continue the replay's streams."""
    return [variable for name, variable in self.fields.items()
            if variable.shape.rank and name != "recent_returns"]

  def read(self) -> S:
    """Returns the current values. Arrays are copies that the caller may change."""
    values: dict[str, Any] = {}
    for name, variable in self.fields.items():
      value = replicated.read(variable)
      values[name] = value if value.ndim else int(value)
    return self._kind(**values)

  def holds(self, state: S, *names: str) -> bool:
    """Returns whether some fields still equal those of `state`.

    They may differ after a checkpoint is restored.
    """
    return all(np.array_equal(replicated.read(self.fields[name]), getattr(state, name))
               for name in names)

  def write(self, state: S, changed: Mapping[str, np.ndarray | None] | None = None) -> None:
    """Writes a state into every copy.

    For large fields, `changed` has the indices of new values, see `replicated.assign`.
    """
    for name, variable in self.fields.items():
      where = changed.get(name) if changed else None
      replicated.assign(variable, getattr(state, name), where)

  def scalars(self, *names: str) -> dict[str, tf.Tensor]:
    """Returns scalars for logging, []: the variables with these names, and `episode_return`.

    `episode_return` is the mean return of the last 10 finished episodes, 0 before the first.
    """
    returns = self.fields["recent_returns"]
    number = tf.clip_by_value(self.fields["episodes"], 1, RECENT)
    mean = tf.reduce_sum(returns) / tf.cast(number, returns.dtype)
    return {**{name: self.fields[name] for name in names},
            "episode_return": tf.cast(mean, keras.config.floatx())}

