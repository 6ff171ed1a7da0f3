"""The `trainable` flags of a step, which may change between two calls: a network is frozen.

A compiled step keeps the flags that it was traced with. So it is compiled again when the flags are
others, and a checkpoint keeps the changes.
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
    """Every flag. It takes microseconds, so that it can be asked before each call."""
    return tuple(map(_flag_of, self._owners.values()))

  def changes(self) -> dict[str, bool]:
    """The flags that are not those of the beginning, by path; JSON-able."""
    return {path: flag for path, flag, first in zip(
        self._owners, self.flags(), self._first, strict=True) if flag != first}

  def unfrozen(self) -> set[int]:
    """The ids of the layers and variables that are trainable now, and were not at the beginning."""
    return {id(owner) for owner, flag, first in zip(
        self._owners.values(), self.flags(), self._first, strict=True) if flag and not first}

  def restore(self, changes: dict[str, bool]) -> None:
    """Sets the flags to those of the beginning, but for these changes."""
    flags = [changes.get(path, first) for path, first in zip(
        self._owners, self._first, strict=True)]
    for _ in flags:  # To set that of a layer also sets those of what is inside.
      for owner, flag in zip(self._owners.values(), flags, strict=True):
        if owner.trainable != flag:
          owner.trainable = flag
      if self.flags() == tuple(flags):
        break
