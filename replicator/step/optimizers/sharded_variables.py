"""Several variables as one vector; each replica updates a part of it."""

from collections.abc import Container, Sequence
from typing import Any

from replicator.internals.keras_internals import decays_weights_of
from replicator.step.optimizers.flat_variables import FlatVariable
from replicator.step.optimizers.schedules import replaced
from replicator.step.shards import Shards

import keras
import tensorflow as tf


class ShardedVariable(FlatVariable):
  """Variables joined in one vector, of which a Keras optimizer sees the part of one replica.

  The slots are as long as that part. `shards` describes how the variables are sharded over
  `replicas` replicas, and the shape of a slot on a single replica.
  """

  def __init__(self, variables: Sequence[keras.Variable], replicas: int):
    super().__init__(variables)
    whole = super().shape if len(variables) > 1 else variables[0].shape
    self.shards = Shards([v.shape for v in variables], replicas, whole)

  @property
  def shape(self) -> tuple[int, ...]:
    """The shape of a replica's part."""
    return (self.shards.length,)

  def seen_by_optimizer(self) -> keras.Variable:
    """Returns the variable to build an optimizer with."""
    return self

  def pieces(self, tensors: Sequence[tf.Tensor | None]) -> list[tf.Tensor]:
    """Converts a tensor for each variable, or None for zeros, to all replicas' parts of it.

    They are pieces of `[replicas, n]`.
    """
    return self.shards.rows([tf.zeros(v.shape, self.dtype) if x is None else tf.cast(x, self.dtype)
                             for x, v in zip(tensors, self.variables, strict=True)])

  def unpack(self, rows: tf.Tensor) -> list[tf.Tensor]:
    """Returns the tensor for each variable; the inverse of `pieces`."""
    return self.shards.tensors(rows)

  def own(self, replica: int) -> tf.Tensor:
    """Returns a replica's part of the variables, whose `value` must be a plain copy: `[n]`."""
    return self.shards.own([v.value for v in self.variables], replica)

  def updated(self, optimizer: keras.optimizers.Optimizer, gradient: tf.Tensor, step: tf.Tensor,
              learning_rate: tf.Tensor, changing: Container[int], replica: int) -> tf.Tensor:
    """Returns a replica's part `[n]` of the variables after an update by its part of the gradient.

    Changes the slots, but no variable. Called like `FlatVariable.update`, where `value` of the
    slots is the replica's own.
    """
    values = [variable.value for variable in self.variables]
    changes = [id(variable) in changing for variable in self.variables]
    with tf.device(values[0].device), replaced(optimizer, self._settings(optimizer, step)):
      before = self.own(replica)
      decays = tf.is_tensor(optimizer.weight_decay) or bool(optimizer.weight_decay)
      part = _Part(self, self._decayed(optimizer, before, learning_rate) if decays else before)
      # Slots of a different vector of the same length do not change here.
      slots = [] if all(changes) else [
          v.value for v in optimizer.variables if tuple(v.shape) == self.shape]
      kept = [tf.identity(slot) for slot in slots]
      optimizer.update_step(gradient, part, learning_rate)
      if all(changes):
        return part.tensor
      mask = self.shards.mask(changes)
      for slot, old in zip(slots, kept, strict=True):
        slot.assign(tf.where(mask, slot, old))
      return tf.where(mask, part.tensor, before)

  def _decayed(self, optimizer: keras.optimizers.Optimizer, part: tf.Tensor,
               learning_rate: tf.Tensor) -> tf.Tensor:
    """Applies weight decay to a part, except where variables are excluded from it."""
    decays = [decays_weights_of(optimizer, variable) for variable in self.variables]
    less = part - part * tf.cast(optimizer.weight_decay * learning_rate, part.dtype)
    return less if all(decays) else tf.where(self.shards.mask(decays), less, part)

  def assign(self, rows: tf.Tensor, changing: Container[int]) -> None:
    """Assigns the parts of all replicas to one device's copies of the variables.

    Called where `value` of the variables is the copy.
    """
    for variable, tensor in zip(self.variables, self.unpack(rows), strict=True):
      if id(variable) in changing:
        variable.value.assign(tensor)
        if variable.constraint is not None:
          variable.value.assign(variable.constraint(variable))


class _Part:
  """A replica's part of a `ShardedVariable`, held as `tensor`, for Keras to update."""

  def __init__(self, flat: ShardedVariable, tensor: tf.Tensor):
    self._flat, self.tensor = flat, tensor
    self.dtype, self.shape, self.path = flat.dtype, flat.shape, flat.path

  def __getattr__(self, name: str) -> Any:
    # Keras finds the slots by the variable that it was built with.
    return getattr(self._flat.value, name)

  def __tf_tensor__(self, dtype: tf.DType | None = None, name: str | None = None) -> tf.Tensor:
    return self.tensor if dtype is None else tf.cast(self.tensor, dtype)

  def assign(self, value: tf.Tensor) -> None:
    """Replaces the tensor."""
    self.tensor = value

  def assign_add(self, change: tf.Tensor) -> None:
    """Adds a tensor."""
    self.tensor += change

  def assign_sub(self, change: tf.Tensor) -> None:
    """Subtracts a tensor."""
    self.tensor -= change
