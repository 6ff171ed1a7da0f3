"""Exponential moving averages of the weights of networks."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from replicator.internals.keras_internals import VariableScope, values_of_scope
from replicator.step.optimizers.schedules import Number, value_at
from replicator.step.replicated import copies_of

import keras
import tensorflow as tf


class MovingAverages(tf.Module):
  """Exponential moving averages: `average = decay average + (1 - decay) variable`.

  See Polyak and Juditsky (1992), and for GANs Yazici et al. (2019). They are copies for `start`
  updates of the variables, and then move once per `every` updates. That of a variable that is not
  `trainable` stays: what is frozen goes on as it was. `values` are the averages.
  """

  def __init__(self, variables: Sequence[keras.Variable], decay: Number, start: int, every: int):
    super().__init__(name="averages")
    self._variables, self._decay, self._start, self._every = variables, decay, start, every
    self.values = [_copy_of(variable) for variable in variables]

  def update(self, strategy: tf.distribute.Strategy, updates: tf.Tensor,
             made: Callable[[Callable], Callable]) -> None:
    """Moves the averages after update number `updates`, int64 []; a cross-replica function.

    `made` makes the function that moves one device's copies.
    """
    keep = tf.where(updates > self._start, value_at(self._decay, updates - 1), 0.0)
    due = (updates % self._every == 0) | (updates <= self._start)

    def move(_, averages, variables, keep, due):
      for average, variable in zip(averages, variables, strict=True):
        moved = variable + tf.cast(keep, average.dtype) * (average - variable)
        if self._every > 1:  # With tf.cond, XLA would copy all averages and variables first.
          moved = tf.where(due, moved, average)
        average.assign(moved)

    groups: dict[tuple, list[tuple[Any, Any]]] = {}  # By devices: they move together.
    for average, variable in zip(self.values, self._variables, strict=True):
      if variable.trainable:
        devices = tuple(copy.device for copy in copies_of(variable.value))
        groups.setdefault(devices, []).append((average.value, variable.value))
    for pairs in groups.values():
      averages, variables = map(list, zip(*pairs, strict=True))
      strategy.extended.update(averages[0], made(move), args=(averages, variables, keep, due),
                               group=False)

  @contextlib.contextmanager
  def in_place_of_weights(self) -> Iterator[None]:
    """A context in which networks compute with the averages; nothing is overwritten."""
    values = {id(variable): tf.convert_to_tensor(average.value)
              for variable, average in zip(self._variables, self.values, strict=True)}
    with VariableScope({**values_of_scope(), **values}, drops=True):
      yield


def _copy_of(variable: keras.Variable) -> keras.Variable:
  with tf.distribute.get_strategy().extended.colocate_vars_with(variable.value):
    return keras.Variable(lambda shape, dtype: tf.cast(tf.identity(variable.value), dtype),
                          shape=variable.shape, dtype=variable.dtype, trainable=False,
                          name=f"{variable.name}_average", aggregation="only_first_replica")
