"""Several variables as one vector: an update takes a dozen operations, not a dozen for each."""

import contextlib
import hashlib
from collections.abc import Iterator, Sequence

import keras
import numpy as np
import tensorflow as tf

from replicator.step.keras_internals import decays_weights_of, iterations_read, slot_key

_ELEMENTWISE = tuple(getattr(keras.optimizers, name) for name in (
    "SGD", "RMSprop", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "Lion"))
"""What these compute for one number of a variable does not depend on the others."""

_MULTIPLE = 768
"""The length of a vector, with zeros at its end, is a multiple of it, and so of most numbers of
cores: where XLA cannot share out a vector evenly it computes one number at a time."""


class Flat(keras.Variable):
  """Some variables, end to end: for a Keras optimizer one variable, whose slots are as long.

  It holds no values of its own. A single variable keeps its shape, and its optimizer sees it.

  Args:
    variables: of one network, dtype and device.

  Attributes:
    variables: the same.
  """

  def __init__(self, variables: Sequence[keras.Variable]):
    # Not Keras' own constructor, which would make one more variable.
    self.variables = list(variables)
    self._sizes = [int(np.prod(v.shape)) for v in self.variables]
    self._padding = -sum(self._sizes) % _MULTIPLE

  @property
  def path(self) -> str:
    """After which slots are named."""
    return f"{self.variables[0].path}_and_{len(self.variables) - 1}_more"

  @property
  def shape(self) -> tuple[int, ...]:
    """Of one vector."""
    return (sum(self._sizes) + self._padding,)

  @property
  def dtype(self) -> str:
    """Of each of the variables."""
    return self.variables[0].dtype

  @property
  def value(self) -> tf.Variable:
    """The first variable, which has the devices of all: slots are placed, and found, by it."""
    return self.variables[0].value

  def seen_by_optimizer(self) -> keras.Variable:
    """What an optimizer is to be built with."""
    return self.variables[0] if len(self.variables) == 1 else self

  def pack(self, tensors: Sequence[tf.Tensor | None]) -> tf.Tensor:
    """A tensor for each variable, or zeros where it is None, as one of the whole shape."""
    if len(self.variables) == 1:
      return tf.cast(tensors[0], self.dtype)
    parts = [tf.zeros([size], self.dtype) if x is None else tf.cast(tf.reshape(x, [-1]), self.dtype)
             for x, size in zip(tensors, self._sizes, strict=True)]
    return tf.concat([*parts, tf.zeros([self._padding], self.dtype)], 0)

  def unpack(self, vector: tf.Tensor) -> list[tf.Tensor]:
    """The tensor for each variable."""
    if len(self.variables) == 1:
      return [vector]
    parts = tf.split(vector, [*self._sizes, self._padding])[:-1]
    return [tf.reshape(part, v.shape)
            for part, v in zip(parts, self.variables, strict=True)]

  def mask(self, changing: Sequence[bool]) -> np.ndarray:
    """For each number whether its variable is `changing`: bool, of the whole shape."""
    return np.repeat([*changing, False], [*self._sizes, self._padding])


class FlatCopies:
  """One device's copies of the variables of a `Flat`, as a Keras optimizer updates them.

  Args:
    flat: the variables.
    copies: of each variable, on one device.
    changing: whether each is to be updated.
    key: by which the optimizer finds the slots.
  """

  def __init__(self, flat: Flat, copies: Sequence[tf.Variable], changing: Sequence[bool],
               key: str):
    self._flat, self._copies, self._changing = flat, copies, changing
    self._unique_id = key
    self.dtype, self.shape = flat.dtype, flat.shape

  def assign_add(self, change: tf.Tensor) -> None:
    """Adds to each copy its part of `change`, which has the whole shape."""
    self._assign("assign_add", change)

  def assign_sub(self, change: tf.Tensor) -> None:
    """Subtracts from each copy its part of `change`, which has the whole shape."""
    self._assign("assign_sub", change)

  def assign(self, value: tf.Tensor) -> None:
    """Gives each copy its part of `value`, which has the whole shape."""
    self._assign("assign", value)

  def _assign(self, method: str, value: tf.Tensor) -> None:
    parts = self._flat.unpack(value)
    for copy, part, changes in zip(self._copies, parts, self._changing, strict=True):
      if changes:
        getattr(copy, method)(part)


def flatten(optimizer: keras.optimizers.Optimizer, networks: Sequence[Sequence[keras.Variable]]
            ) -> list[Flat]:
  """Joins the variables of a network that share dtype and devices, where that is no other update.

  Norms of a variable, or its rows and columns, need it by itself: only for optimizers known to
  look at one number at a time are variables joined.
  """
  if type(optimizer) not in _ELEMENTWISE:
    return [Flat([variable]) for network in networks for variable in network]
  groups: dict[tuple, list[keras.Variable]] = {}
  for number, network in enumerate(networks):
    for variable in network:
      groups.setdefault((number, variable.dtype, _devices(variable.value)), []).append(variable)
  return [Flat(group) for group in groups.values()]


def layout(flats: Sequence[Flat]) -> str:
  """A hash of what lies where in the slots: with another one they would be of other variables."""
  shapes = [[tuple(v.shape) for v in flat.variables] for flat in flats]
  return hashlib.sha256(repr(shapes).encode()).hexdigest()[:8]


def _devices(variable: tf.Variable) -> tuple[str, ...]:
  copies = getattr(variable, "values", None)
  if isinstance(copies, tuple):  # One for each replica of a synchronous strategy.
    return tuple(copy.device for copy in copies)
  return (variable.device,)


@contextlib.contextmanager
def _slots_kept(optimizer: keras.optimizers.Optimizer, mask: np.ndarray) -> Iterator[None]:
  """Inside, an update changes no number of a slot where `mask` is False."""
  kind = type(optimizer)

  def masked(assign, otherwise):
    def assign_masked(target, value):
      if not isinstance(target, FlatCopies):  # Which leaves those variables alone by itself.
        value = tf.where(mask, value, otherwise(target, value))
      assign(optimizer, target, value)
    return assign_masked

  zeros = lambda target, value: tf.zeros_like(value)
  replaced = {"assign": masked(kind.assign, lambda target, value: target.value),
              "assign_add": masked(kind.assign_add, zeros),
              "assign_sub": masked(kind.assign_sub, zeros)}
  for name, method in replaced.items():
    object.__setattr__(optimizer, name, method)
  try:
    yield
  finally:
    for name in replaced:
      object.__delattr__(optimizer, name)


def update_copies(first: tf.Variable, copies: Sequence[tf.Variable], gradient: tf.Tensor,
                  iterations: tf.Tensor, learning_rate: tf.Tensor,
                  optimizer: keras.optimizers.Optimizer, flat: Flat, changing: Sequence[bool]
                  ) -> None:
  """Updates one device's copies of the variables of a `Flat`, as the optimizer would each.

  Args:
    first: the first of the copies.
    copies: of all the variables.
    gradient: of the whole shape.
    iterations: int64 [], updates before this one.
    learning_rate: float32 [].
    optimizer: built with `flat.seen_by_optimizer()`.
    flat: the variables.
    changing: whether each is to be updated.
  """
  for copy, variable, changes in zip(copies, flat.variables, changing, strict=True):
    if changes and optimizer.weight_decay and decays_weights_of(optimizer, variable):
      copy.assign_sub(copy * tf.cast(optimizer.weight_decay * learning_rate, copy.dtype))
  with contextlib.ExitStack() as stack:
    stack.enter_context(iterations_read(optimizer, iterations))
    target: tf.Variable | FlatCopies = first
    if len(copies) > 1:
      target = FlatCopies(flat, copies, changing, slot_key(optimizer, flat))
      if not all(changing):
        stack.enter_context(_slots_kept(optimizer, flat.mask(changing)))
    optimizer.update_step(gradient, target, learning_rate)
