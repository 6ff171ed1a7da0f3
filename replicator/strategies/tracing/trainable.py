"""The `trainable` flags of a step, which may change between calls, as when a network is frozen.

A compiled step keeps the flags that it was traced with. So it is compiled again when they change,
and a checkpoint stores the changes.
"""

import operator
from collections.abc import Callable

from replicator.internals.keras_internals import layers_in
from replicator.step.variables import held_by

import keras

_flag_of = operator.attrgetter("trainable")


class Trainable:
  """The `trainable` flags of all Keras layers and variables that a step holds."""

  def __init__(self, step: Callable):
    self._owners: dict[str, keras.layers.Layer | keras.Variable] = {}
    for path, item in held_by(step, (keras.layers.Layer, keras.Variable)):
      parts = [item] if isinstance(item, keras.Variable) else [*layers_in(item), *item.variables]
      self._owners.update((f"{path}/{number:03d}", part) for number, part in enumerate(parts))
    self._first = self.flags()

  def flags(self) -> tuple[bool, ...]:
    """Returns all flags. It takes microseconds, so it can be called before each step."""
    return tuple(map(_flag_of, self._owners.values()))

  def changes(self) -> dict[str, bool]:
    """Returns the flags that have changed since the beginning, by path; JSON-able."""
    return {path: flag for path, flag, first in zip(
        self._owners, self.flags(), self._first, strict=True) if flag != first}

  def unfrozen(self) -> set[int]:
    """Returns the ids of layers and variables that are trainable now but were not at first."""
    return {id(owner) for owner, flag, first in zip(
        self._owners.values(), self.flags(), self._first, strict=True) if flag and not first}

  def restore(self, changes: dict[str, bool]) -> None:
    """Sets the flags to their initial values, except for these changes."""
    flags = [changes.get(path, first) for path, first in zip(
        self._owners, self._first, strict=True)]
    for _ in flags:  # Setting the flag of a layer also sets those inside it.
      for owner, flag in zip(self._owners.values(), flags, strict=True):
        if owner.trainable != flag:
          owner.trainable = flag
      if self.flags() == tuple(flags):
        break
