"""Exponential moving averages of the weights of networks."""

import contextlib
from collections.abc import Iterator, Sequence

from replicator.internals.keras_internals import VariableScope, values_of_scope
from replicator.step.optimizers.schedules import Number, value_at

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

  def update(self, updates: tf.Tensor) -> None:
    """Moves the averages after update number `updates`, int64 [].

    It is called where `value` of the averages and the variables is the copy of one device.
    """
    keep = tf.where(updates > self._start, value_at(self._decay, updates - 1), 0.0)
    due = (updates % self._every == 0) | (updates <= self._start)
    for average, variable in zip(self.values, self._variables, strict=True):
      if variable.trainable:
        with tf.device(average.value.device):
          moved = variable.value + tf.cast(keep, average.dtype) * (average.value - variable.value)
          if self._every > 1:  # With tf.cond, XLA would copy all averages and variables first.
            moved = tf.where(due, moved, average.value)
          average.value.assign(moved)

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
