"""Several variables as one vector, so that an update takes a dozen operations in total."""

import contextlib
import hashlib
from collections.abc import Iterator, Sequence

from replicator.internals.keras_internals import (
  decays_weights_of,
  exact_casts,
  iterations_read,
  slot_key,
)
from replicator.step.optimizers.schedules import is_schedule
from replicator.step.replicated import copies_of

import keras
import numpy as np
import tensorflow as tf

_ELEMENTWISE = tuple(getattr(keras.optimizers, name) for name in (
    "SGD", "RMSprop", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "Lion"))
"""Optimizers that update each number of a variable independently of the others."""

# Vectors are padded with zeros to a multiple of this length, and so of most numbers of cores. XLA
# computes one number at a time if the cores cannot share a vector evenly.
_MULTIPLE = 768


class FlatVariable(keras.Variable):
  """Variables laid end to end, which a Keras optimizer sees as one variable with slots as long.

  The variables have one dtype and one device. It holds no values of its own. A single one is seen
  itself, in its own shape.
  """

  def __init__(self, variables: Sequence[keras.Variable]):
    # Not Keras' own constructor, which would make one more variable.
    self.variables = list(variables)
    self._sizes = [int(np.prod(v.shape)) for v in self.variables]
    self._padding = -sum(self._sizes) % _MULTIPLE

  @property
  def path(self) -> str:
    """The name that Keras gives to slots."""
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
    return self.variables[0].value

  def seen_by_optimizer(self) -> keras.Variable:
    """The variable to build an optimizer with."""
    return self.variables[0] if len(self.variables) == 1 else self

  def pack(self, tensors: Sequence[tf.Tensor | None]) -> tf.Tensor:
    """Joins a tensor for each variable, or zeros for None, into one tensor of `shape`."""
    if len(self.variables) == 1:
      return tf.cast(tensors[0], self.dtype)
    parts = [tf.zeros([size], self.dtype) if x is None else tf.cast(tf.reshape(x, [-1]), self.dtype)
             for x, size in zip(tensors, self._sizes, strict=True)]
    return tf.concat([*parts, tf.zeros([self._padding], self.dtype)], 0)

  def unpack(self, vector: tf.Tensor) -> list[tf.Tensor]:
    """Splits a tensor of `shape` into a tensor for each variable."""
    if len(self.variables) == 1:
      return [vector]
    parts = tf.split(vector, [*self._sizes, self._padding])[:-1]
    return [tf.reshape(part, v.shape)
            for part, v in zip(parts, self.variables, strict=True)]

  def mask(self, changing: Sequence[bool]) -> np.ndarray:
    """Whether each number belongs to a variable that is `changing`: bool, of `shape`."""
    return np.repeat([*changing, False], [*self._sizes, self._padding])


class FlatCopies:
  """One device's copies of the variables of a `FlatVariable`, for a Keras optimizer to update.

  `changing` says whether each variable is updated, `key` is that of the optimizer's slots.
  """

  def __init__(self, flat: FlatVariable, copies: Sequence[tf.Variable], changing: Sequence[bool],
               key: str):
    self._flat, self._copies, self._changing = flat, copies, changing
    self._unique_id = key
    self.dtype, self.shape = flat.dtype, flat.shape

  def assign_add(self, change: tf.Tensor) -> None:
    """Adds a tensor of `shape`."""
    self._assign("assign_add", change)

  def assign_sub(self, change: tf.Tensor) -> None:
    """Subtracts a tensor of `shape`."""
    self._assign("assign_sub", change)

  def _assign(self, method: str, value: tf.Tensor) -> None:
    parts = self._flat.unpack(value)
    for copy, part, changes in zip(self._copies, parts, self._changing, strict=True):
      if changes:
        getattr(copy, method)(part)


def flatten(optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable]
            ) -> list[FlatVariable]:
  """Joins the variables that share a dtype and devices, for an elementwise optimizer."""
  if type(optimizer) not in _ELEMENTWISE:
    return [FlatVariable([variable]) for variable in variables]
  groups: dict[tuple, list[keras.Variable]] = {}
  for variable in variables:
    devices = tuple(copy.device for copy in copies_of(variable.value))
    groups.setdefault((variable.dtype, devices), []).append(variable)
  return [FlatVariable(group) for group in groups.values()]


def layout(flats: Sequence[FlatVariable]) -> str:
  """A hash of the layout of the slots. Slots with another hash belong to other variables."""
  shapes = [[tuple(v.shape) for v in flat.variables] for flat in flats]
  return hashlib.sha256(repr(shapes).encode()).hexdigest()[:8]


@contextlib.contextmanager
def _slots_kept(optimizer: keras.optimizers.Optimizer, flat: FlatVariable,
                changing: Sequence[bool]) -> Iterator[None]:
  """A context in which an update keeps the slots of variables that are not `changing`."""
  # Slots of as long a vector elsewhere do not change here.
  slots = [slot for slot in optimizer.variables if tuple(slot.shape) == flat.shape]
  before = [tf.identity(slot.value) for slot in slots]
  yield
  for slot, old in zip(slots, before, strict=True):
    slot.assign(tf.where(flat.mask(changing), slot.value, old))


@contextlib.contextmanager
def _options_at(optimizer: keras.optimizers.Optimizer, updates: tf.Tensor, dtype: str
                ) -> Iterator[None]:
  """A context in which options that are schedules, such as `beta_2`, are numbers.

  They are the schedules' values after `updates` updates, int64 []. The learning rate, which Keras
  reads from its schedule itself, is not among them.
  """
  schedules = {name: value for name, value in vars(optimizer).items()
               if is_schedule(value) and name != "_learning_rate"}
  # Keras' own setter would look at each value for variables to keep.
  for name, schedule in schedules.items():
    object.__setattr__(optimizer, name, tf.cast(schedule(updates), dtype))
  try:
    yield
  finally:
    for name, schedule in schedules.items():
      object.__setattr__(optimizer, name, schedule)


def update_copies(first: tf.Variable, copies: Sequence[tf.Variable], gradient: tf.Tensor,
                  iterations: tf.Tensor, learning_rate: tf.Tensor,
                  optimizer: keras.optimizers.Optimizer, flat: FlatVariable,
                  changing: Sequence[bool]) -> None:
  """Updates one device's copies of the variables, as one Keras update per variable would.

  `first` is the first copy, and `gradient` has the shape of `flat`. `iterations` is the number of
  updates before this one, int64 []; `learning_rate` is floating []. The optimizer is built with
  `flat.seen_by_optimizer()`.
  """
  with contextlib.ExitStack() as stack:
    stack.enter_context(_options_at(optimizer, iterations, flat.dtype))
    # A number, or the tensor of a schedule.
    decays = tf.is_tensor(optimizer.weight_decay) or bool(optimizer.weight_decay)
    for copy, variable, changes in zip(copies, flat.variables, changing, strict=True):
      if changes and decays and decays_weights_of(optimizer, variable):
        copy.assign_sub(copy * tf.cast(optimizer.weight_decay * learning_rate, copy.dtype))
    stack.enter_context(exact_casts())
    stack.enter_context(iterations_read(optimizer, iterations))
    target: tf.Variable | FlatCopies = first
    if len(copies) > 1:
      target = FlatCopies(flat, copies, changing, slot_key(optimizer, flat))
      if not all(changing):
        stack.enter_context(_slots_kept(optimizer, flat, changing))
    optimizer.update_step(gradient, target, learning_rate)
