"""The state of an optimizer, with a copy on each replica, and its update."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Container, Iterator, Sequence

from replicator.internals.compiled_functions import calls_of_functions
from replicator.step import context, replicated, xla
from replicator.step.optimizers.communication import Communication, Pieces
from replicator.step.optimizers.flat_variables import FlatVariable
from replicator.step.optimizers.moving_averages import MovingAverages
from replicator.step.optimizers.schedules import replaced, unrounded

import keras
import tensorflow as tf


@dataclasses.dataclass
class Update:
  """An update with averaged and clipped gradients, one for each of the `flats` that it changes.

  `step` is the number of the training step, int64 [], for which schedules are evaluated. Only
  variables whose id is in `changing` change.
  """

  flats: Sequence[FlatVariable]
  gradients: Sequence[tf.Tensor]
  step: tf.Tensor
  learning_rate: tf.Tensor
  changing: Container[int]


class State:
  """The variables that an optimizer updates, with its slots and averages.

  Every replica has a copy of them all, and makes the same update. The optimizer is built here, for
  `flats`, because a replica cannot create variables.
  """

  def __init__(self, optimizer: keras.optimizers.Optimizer, flats: Sequence[FlatVariable],
               averages: MovingAverages | None, communication: Communication):
    self.flats, self._optimizer, self._averages = flats, optimizer, averages
    self._communication = communication
    with replaced(optimizer, unrounded(optimizer)):
      optimizer.build([flat.seen_by_optimizer() for flat in flats])
    # Everything that an update reads or changes; the count of updates is first.
    self._slots = [v for v in optimizer.variables if v is not optimizer.iterations]
    self._variables = [variable for flat in flats for variable in flat.variables]
    self._state = [optimizer.iterations, *self._slots, *self._variables,
                   *(averages.values if averages else [])]
    self._values = [variable.value for variable in self._state]

  def exchanged(self) -> contextlib.AbstractContextManager[None]:
    """Returns the context of an update; see `shards.exchanged`."""
    return contextlib.nullcontext()

  def mean(self, local: Pieces) -> list[tf.Tensor]:
    """Averages gradients over the replicas, in the form that `update` takes.

    `local` are this replica's gradients, as `FlatVariable.pieces` returns them.
    """
    return self._communication.mean(local)

  def gathered(self, averaged: list[tf.Tensor]) -> list[tf.Tensor]:
    """Converts averaged gradients to the form that `FlatVariable.unpack` takes."""
    return averaged

  def scattered(self, whole: list[tf.Tensor]) -> list[tf.Tensor]:
    """Converts gradients back to the form that `update` takes; the inverse of `gathered`."""
    return whole

  def norm(self, averaged: list[tf.Tensor]) -> tf.Tensor:
    """Returns the norm of all averaged gradients together: []."""
    return tf.linalg.global_norm(averaged)

  def largest(self, averaged: list[tf.Tensor]) -> tf.Tensor:
    """Returns the largest absolute value in the averaged gradients: float32 []."""
    return tf.reduce_max([tf.cast(tf.reduce_max(tf.abs(x)), tf.float32) for x in averaged])

  def update(self, update: Update, due: tf.Tensor | None) -> None:
    """Makes an update if it is `due`, bool []; None for always.

    Replaces Keras' `apply`, which would sum the gradients over the replicas again.
    """
    make: Callable[..., None] = functools.partial(self._update, update)
    if context.current().xla_in_parts:
      make = xla.one_program(make)
    replicated.update(self._values, make if due is None else (
        lambda copies: tf.cond(due, lambda: make(copies), lambda: None)))

  def _update(self, update: Update, copies: Sequence[tf.Variable]) -> None:
    """Updates one device's `copies` of the state."""
    iterations = copies[0]
    with self._in_place(copies):
      for flat, gradient in zip(update.flats, update.gradients, strict=True):
        flat.update(self._optimizer, gradient, update.step, update.learning_rate, update.changing)
      # Keras reads the count and then assigns it; asynchronous workers would lose counts.
      iterations.assign_add(1)
      if self._averages:
        self._averages.update(tf.identity(iterations), update.step)

  @contextlib.contextmanager
  def _in_place(self, copies: Sequence[tf.Variable]) -> Iterator[None]:
    """Makes each Keras variable of the state stand for its copy in `copies`, in the body.

    The count of updates is read once.
    """
    values = zip(self._state, [tf.identity(copies[0]), *copies[1:]], strict=True)
    with calls_of_functions(inlined=True), keras.StatelessScope(values, initialize_variables=False):
      yield
