"""Exponential moving averages of the weights of networks."""

import contextlib
from collections.abc import Iterator, Sequence

import keras
import tensorflow as tf

from replicator.internals.keras_internals import VariableScope, values_of_scope


class MovingAverages(tf.Module):
  """Exponential moving averages: `average = decay average + (1 - decay) variable`.

  See Polyak and Juditsky (1992), and for GANs Yazici et al. (2019). They are copies for `start`
  updates of the variables, and then move once per `every` updates. `values` are the averages.
  """

  def __init__(self, variables: Sequence[keras.Variable], decay: float, start: int, every: int):
    super().__init__(name="averages")
    self._variables, self._decay, self._start, self._every = variables, decay, start, every
    self.values = [_copy_of(variable) for variable in variables]

  def update(self, strategy: tf.distribute.Strategy, updates: tf.Tensor) -> None:
    """Moves the averages after update number `updates`, int64 []; a cross-replica function."""
    keep = tf.where(updates > self._start, tf.constant(self._decay, tf.float64), 0.0)
    due = updates % self._every == 0

    def move(average, variable, keep, due):
      moved = variable + tf.cast(keep, average.dtype) * (average - variable)
      if self._every > 1:  # With tf.cond, XLA would copy all averages and variables first.
        moved = tf.where(due, moved, average)
      return average.assign(moved)

    for average, variable in zip(self.values, self._variables, strict=True):
      strategy.extended.update(average.value, move, args=(variable.value, keep, due), group=False)

  @contextlib.contextmanager
  def in_place_of_weights(self) -> Iterator[None]:
    """A context in which networks compute with the averages; nothing is overwritten."""
    values = {id(variable): tf.convert_to_tensor(average.value)
              for variable, average in zip(self._variables, self.values, strict=True)}
    with VariableScope({**values_of_scope(), **values}):
      yield


def _copy_of(variable: keras.Variable) -> keras.Variable:
  with tf.distribute.get_strategy().extended.colocate_vars_with(variable.value):
    return keras.Variable(lambda shape, dtype: tf.cast(tf.identity(variable.value), dtype),
                          shape=variable.shape, dtype=variable.dtype, trainable=False,
                          name=f"{variable.name}_average", aggregation="only_first_replica")
