"""Several variables as one vector, so that an update takes a dozen operations in total.

Keras updates one variable at a time. It sees a `FlatVariable` as a single variable, so it creates
slots as long as the vector and computes one update for all.
"""

import hashlib
from collections.abc import Container, Sequence
from typing import Any

from replicator.internals.keras_internals import decays_weights_of
from replicator.step.optimizers.schedules import is_schedule, replaced, unrounded, value_at
from replicator.step.replicated import copies_of

import keras
import numpy as np
import tensorflow as tf

_ELEMENTWISE = tuple(getattr(keras.optimizers, name) for name in (
    "SGD", "RMSprop", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "Lion"))
"""Optimizers that update each element of a variable independently of the others."""

SHARDABLE = (*_ELEMENTWISE, keras.optimizers.Ftrl)
"""Optimizers that can update part of a variable alone. Ftrl's update also reads the variable."""

# Vectors are padded with zeros to a multiple of this length, and so of most numbers of cores. XLA
# computes one element at a time if the cores cannot share a vector evenly.
_MULTIPLE = 768


def grouped(optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable]
            ) -> list[list[keras.Variable]]:
  """Groups the variables that an elementwise optimizer updates as one, by dtype and devices.

  A user-defined `update_step` sees each variable by itself.
  """
  if type(optimizer) not in _ELEMENTWISE or "update_step" in vars(optimizer):
    return [[variable] for variable in variables]
  groups: dict[tuple, list[keras.Variable]] = {}
  for variable in variables:
    devices = tuple(copy.device for copy in copies_of(variable.value))
    groups.setdefault((variable.dtype, devices), []).append(variable)
  return list(groups.values())


def layout(groups: Sequence[Sequence[keras.Variable]]) -> str:
  """Returns a hash of the layout of the slots, which tells slots of other variables apart."""
  shapes = [[tuple(v.shape) for v in group] for group in groups]
  return hashlib.sha256(repr(shapes).encode()).hexdigest()[:8]


class FlatVariable(keras.Variable):
  """Variables laid end to end, which a Keras optimizer sees as one variable.

  The variables share a dtype and devices. A `FlatVariable` holds no values itself. If it has only
  one variable, the optimizer sees that variable in its own shape.
  """

  def __init__(self, variables: Sequence[keras.Variable]):
    # Keras' own constructor would create one more variable.
    self.variables = list(variables)
    self._sizes = [int(np.prod(v.shape)) for v in self.variables]
    self._padding = -sum(self._sizes) % _MULTIPLE
    self._first = self.variables[0].value

  @property
  def path(self) -> str:
    """The name from which Keras makes the names of slots."""
    return f"{self.variables[0].path}_and_{len(self.variables) - 1}_more"

  @property
  def shape(self) -> tuple[int, ...]:
    """The shape of the vector, padding included."""
    return (sum(self._sizes) + self._padding,)

  @property
  def dtype(self) -> str:
    """The dtype of the variables."""
    return self.variables[0].dtype

  @property
  def value(self) -> tf.Variable:
    """The first variable. Keras places slots on its devices, which are those of all variables."""
    return self._first

  def seen_by_optimizer(self) -> keras.Variable:
    """Returns the variable to build an optimizer with."""
    return self.variables[0] if len(self.variables) == 1 else self

  def pieces(self, tensors: Sequence[tf.Tensor | None]) -> list[tf.Tensor]:
    """Converts a tensor per variable, None for zeros, to the pieces of a tensor of `shape`."""
    if len(self.variables) == 1:
      return [tf.cast(tensors[0], self.dtype)]
    parts = [tf.zeros([size], self.dtype) if x is None else tf.cast(tf.reshape(x, [-1]), self.dtype)
             for x, size in zip(tensors, self._sizes, strict=True)]
    return [*parts, tf.zeros([self._padding], self.dtype)]

  def unpack(self, vector: tf.Tensor) -> list[tf.Tensor]:
    """Splits a tensor of `shape` into a tensor for each variable; the inverse of `pieces`."""
    if len(self.variables) == 1:
      return [vector]
    parts = tf.split(vector, [*self._sizes, self._padding])[:-1]
    return [tf.reshape(part, v.shape)
            for part, v in zip(parts, self.variables, strict=True)]

  def update(self, optimizer: keras.optimizers.Optimizer, gradient: tf.Tensor, step: tf.Tensor,
             learning_rate: tf.Tensor, changing: Container[int]) -> None:
    """Updates one device's copies of the variables, as one Keras update per variable would.

    Variables whose ids are not in `changing` stay unchanged, as do their slots. When it is called,
    the `value` of each variable, including the optimizer's own, must be the copy to update, and
    `iterations` must be the number of updates before this one. Schedules are evaluated at `step`.
    The optimizer is built with `seen_by_optimizer()`, whose shape `gradient` has.
    """
    copies = [variable.value for variable in self.variables]
    changes = [id(variable) in changing for variable in self.variables]
    with tf.device(copies[0].device), replaced(optimizer, self._settings(optimizer, step)):
      # A number, or the tensor of a schedule.
      decays = tf.is_tensor(optimizer.weight_decay) or bool(optimizer.weight_decay)
      for variable, copy, is_changed in zip(self.variables, copies, changes, strict=True):
        if is_changed and decays and decays_weights_of(optimizer, variable):
          copy.assign_sub(copy * tf.cast(optimizer.weight_decay * learning_rate, copy.dtype))
      copies[0].path = self.variables[0].path  # A TensorFlow variable has no path.
      target = copies[0] if len(copies) == 1 else _Copies(self, copies, changes)
      # These may include the slots of another vector of this length, which do not change here.
      slots = [] if all(changes) else [
          v.value for v in optimizer.variables if tuple(v.shape) == self.shape]
      before = [tf.identity(slot) for slot in slots]
      optimizer.update_step(gradient, target, learning_rate)
      for slot, old in zip(slots, before, strict=True):
        slot.assign(tf.where(np.repeat([*changes, False], [*self._sizes, self._padding]),
                             slot, old))
      for variable, copy, is_changed in zip(self.variables, copies, changes, strict=True):
        if is_changed and variable.constraint is not None:
          copy.assign(variable.constraint(variable))

  def _settings(self, optimizer: keras.optimizers.Optimizer, step: tf.Tensor) -> dict[str, Any]:
    """Returns the settings of an optimizer, such as `beta_2`, for this update.

    Schedules become tensors. The learning rate is not included: Keras keeps it under a private
    name.
    """
    schedules = {name: tf.cast(value_at(value, step), self.dtype)
                 for name, value in vars(optimizer).items()
                 if is_schedule(value) and not name.startswith("_")}
    return {**(unrounded(optimizer) if self.dtype == "float64" else {}), **schedules}


class _Copies:
  """One device's copies of the variables of a `FlatVariable`, for a Keras optimizer to update.

  `changes` says whether each is updated.
  """

  def __init__(self, flat: FlatVariable, copies: Sequence[tf.Variable], changes: Sequence[bool]):
    self._flat, self._copies, self._changes = flat, copies, changes
    self.dtype, self.shape, self.path = flat.dtype, flat.shape, flat.path

  def __getattr__(self, name: str) -> Any:
    # Keras looks up the slots by the variable that the optimizer was built with.
    return getattr(self._flat.value, name)

  def assign_add(self, change: tf.Tensor) -> None:
    """Adds a tensor of `shape`."""
    for copy, part in self._changed(change):
      copy.assign_add(part)

  def assign_sub(self, change: tf.Tensor) -> None:
    """Subtracts a tensor of `shape`."""
    for copy, part in self._changed(change):
      copy.assign_sub(part)

  def _changed(self, vector: tf.Tensor) -> list[tuple[tf.Variable, tf.Tensor]]:
    parts = zip(self._copies, self._flat.unpack(vector), self._changes, strict=True)
    return [(copy, part) for copy, part, is_changed in parts if is_changed]
