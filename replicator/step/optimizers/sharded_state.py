"""The state of an optimizer, sharded over the replicas: ZeRO, stages 1 and 2.

    reduce_scatter   g_r = part r of mean_s g_s            each replica gets the part that it needs
    all_sum          |g| = sqrt(sum_r |g_r|^2)
    _updated         w_r by Keras' update, with the slots of part r
    gather_parts     w = (w_0, w_1, ...)                   every replica has all weights again

The update must treat each number independently, as those in `flat_variables.SHARDABLE` do. See
Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models".
"""

import contextlib
import functools
from collections.abc import Callable, Sequence

from replicator.errors import UsageError
from replicator.internals.keras_internals import optimizer_variables
from replicator.step import context, xla
from replicator.step.collectives import collectives
from replicator.step.optimizers.communication import Communication, Pieces, joined
from replicator.step.optimizers.moving_averages import MovingAverages
from replicator.step.optimizers.sharded_variables import ShardedVariable
from replicator.step.optimizers.state import State, Update
from replicator.step.replicated import copies_of
from replicator.step.shards import divide, exchanged, local_replicas, own_replica, shards_of

import keras
import tensorflow as tf


class ShardedState(State):
  """A `State` in which each replica has a part of the slots and averages.

  A replica updates its part of the variables, and receives the rest from the other replicas.
  """

  flats: list[ShardedVariable]

  def __init__(self, optimizer: keras.optimizers.Optimizer,
               groups: Sequence[Sequence[keras.Variable]], averages: MovingAverages | None,
               communication: Communication, replicas: int):
    flats = [ShardedVariable(group, replicas) for group in groups]
    with tf.variable_creator_scope(_by_replica):
      super().__init__(optimizer, flats, averages, communication)
    for role, variable in optimizer_variables(optimizer).items():
      name, _, number = role.rpartition("/")
      if name:  # Of the vector with this number; others are counts and rates.
        divide(variable.value, flats[int(number)].shards)
    self._replicas = local_replicas(tf.distribute.get_strategy())
    self._count = replicas

  def exchanged(self) -> contextlib.AbstractContextManager[None]:
    """Returns the context of an update; see `shards.exchanged`."""
    return exchanged(own=len(self._replicas), of=self._count)

  def mean(self, local: Pieces) -> list[tf.Tensor]:
    """Averages gradients over the replicas; returns the parts to update here: `[parts, n]`."""
    if context.num_replicas() > 1:
      return self._communication.mean_scatter(local)
    if not context.current().is_step:
      raise UsageError("wrap_optimizer.sharded = True: each replica updates its own part; call it "
                       "in a step, which train or Replicator.run runs on all replicas")
    if len(self._replicas) < self._count:
      raise UsageError("wrap_optimizer.sharded = True: the state that an update needs is divided "
                       "over processes")
    return list(map(joined, local))  # One replica of this process computes what all do.

  def gathered(self, averaged: list[tf.Tensor]) -> list[tf.Tensor]:
    """Converts averaged gradients to the form that `ShardedVariable.unpack` takes."""
    if context.num_replicas() == 1:
      return averaged
    return [tf.squeeze(x, 1) for x in collectives.gather_parts(averaged)]

  def scattered(self, whole: list[tf.Tensor]) -> list[tf.Tensor]:
    """Converts averaged gradients back to the parts to update here; the inverse of `gathered`."""
    return [tf.gather(x, self._updated_here()) for x in whole]

  def norm(self, averaged: list[tf.Tensor]) -> tf.Tensor:
    """Returns the norm of all averaged gradients together: []."""
    return tf.sqrt(collectives.all_sum(tf.square(super().norm(averaged))))

  def largest(self, averaged: list[tf.Tensor]) -> tf.Tensor:
    """Returns the largest absolute value in the averaged gradients: float32 []."""
    return collectives.all_max(super().largest(averaged))

  def update(self, update: Update, due: tf.Tensor | None) -> None:
    """Makes an update if it is `due`, bool []; None for always."""
    parts = []
    for row, replica in enumerate(self._updated_here()):
      copies = self._copies(replica)
      make: Callable = functools.partial(
          self._updated, update, [x[row] for x in update.gradients], copies, replica)
      with tf.device(copies[0].device):
        if context.current().xla_in_parts:
          make = xla.one_program(make)
        parts.append(make() if due is None else tf.cond(
            due, make, functools.partial(self._parts, update.flats, copies, replica)))
    # Replicas cannot meet in a `tf.cond`.
    rows = (collectives.gather_parts(parts[0]) if context.num_replicas() > 1 else
            [tf.stack(of_flat) for of_flat in zip(*parts, strict=True)])
    finish = functools.partial(self._finish, update, rows)
    with tf.device(copies[0].device):
      if due is None:
        finish()
      else:
        tf.cond(due, finish, lambda: None)

  def _updated(self, update: Update, gradients: Sequence[tf.Tensor], copies: Sequence[tf.Variable],
               replica: int) -> list[tf.Tensor]:
    """Updates a replica's slots; returns its parts of the variables after the update."""
    with self._in_place(copies):
      return [flat.updated(self._optimizer, gradient, update.step, update.learning_rate,
                           update.changing, replica)
              for flat, gradient in zip(update.flats, gradients, strict=True)]

  def _parts(self, flats: Sequence[ShardedVariable], copies: Sequence[tf.Variable], replica: int
             ) -> list[tf.Tensor]:
    """Returns a replica's current parts of the variables."""
    with self._in_place(copies):
      return [flat.own(replica) for flat in flats]

  def _finish(self, update: Update, rows: Sequence[tf.Tensor]) -> None:
    """Assigns the variables, counts the update, and updates the parts of the averages."""
    for number, replica in enumerate(self._updated_here()):
      copies = self._copies(replica)
      with self._in_place(copies):
        if number == 0:
          for flat, of_flat in zip(update.flats, rows, strict=True):
            flat.assign(of_flat, update.changing)
          copies[0].assign_add(1)
        if self._averages:
          self._averages.update(tf.identity(copies[0]), update.step, replica)

  def _updated_here(self) -> list[int]:
    """Returns the replicas to update here: this one, or all if it computes for all of them."""
    return [own_replica()] if context.num_replicas() > 1 else self._replicas

  def _copies(self, replica: int) -> list[tf.Variable]:
    """Returns the variables of the state: `replica`'s parts, or this replica's copies."""
    own = own_replica()
    of_all = [(copies_of(v), own if shards_of(v) is None else replica) for v in self._values]
    return [copies[number % len(copies)] for copies, number in of_all]


def _by_replica(next_creator: Callable, **options: object) -> tf.Variable:
  """Creates a variable whose copies differ."""
  return next_creator(**{**options, "synchronization": tf.VariableSynchronization.ON_READ,
                         "aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA})
