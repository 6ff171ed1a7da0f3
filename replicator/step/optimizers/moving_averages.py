"""Exponential moving averages of the weights of networks."""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from replicator.errors import UsageError
from replicator.internals.compiled_functions import calls_of_functions
from replicator.internals.keras_internals import (
  VariableScope,
  is_in_scope,
  own_value,
  values_of_scope,
)
from replicator.internals.tensorflow_internals import is_in_trace, may_be_recorded
from replicator.step import context
from replicator.step.collectives import collectives
from replicator.step.optimizers.schedules import Number, value_at
from replicator.step.replicated import copies_of
from replicator.step.shards import Shards, begin, divide, exchanged, gathered, shards_of

import keras
import tensorflow as tf


class MovingAverages(tf.Module):
  """Exponential moving averages: `average = decay average + (1 - decay) variable`.

  See Polyak and Juditsky (1992), and for GANs Yazici et al. (2019). They are copies for `start`
  updates of the variables, and then move once per `every` updates. That of a variable that is not
  `trainable` stays: what is frozen goes on as it was. `values` are the averages.
  """

  def __init__(self, variables: Sequence[keras.Variable], decay: Number, start: int, every: int,
               shards: int = 1):
    super().__init__(name="averages")
    self._variables, self._decay, self._start, self._every = variables, decay, start, every
    self.values = [_copy_of(variable) if shards == 1 else _parts_of(variable, shards)
                   for variable in variables]
    self._shards = [shards_of(average.value) for average in self.values]

  def update(self, updates: tf.Tensor, step: tf.Tensor, replica: int = 0) -> None:
    """Moves the averages after update number `updates`, int64 [], in the training step `step`.

    It is called where `value` of the averages and the variables is the copy of one device; of
    averages that are divided over the replicas, the part of a `replica`.
    """
    keep = tf.where(updates > self._start, value_at(self._decay, step), 0.0)
    due = (updates % self._every == 0) | (updates <= self._start)
    for average, variable, shards in zip(self.values, self._variables, self._shards, strict=True):
      if variable.trainable:
        with tf.device(average.value.device):
          weight = variable.value if shards is None else shards.own([variable.value], replica)
          moved = weight + tf.cast(keep, average.dtype) * (average.value - weight)
          if self._every > 1:  # With tf.cond, XLA would copy all averages and variables first.
            moved = tf.where(due, moved, average.value)
          average.value.assign(moved)

  @contextlib.contextmanager
  def in_place_of_weights(self) -> Iterator[None]:
    """A context in which networks compute with the averages.

    In Python code between steps the weights themselves get the values of the averages, so that all
    that is compiled has them, too. Elsewhere only the values that Keras reads are replaced, and
    what is compiled becomes a part of its caller: in a graph, where others need the weights; under
    a tape, which would find gradients by them; and where other threads may compute at the same
    time, those of `distributed_evaluation` or with parameter servers.
    """
    is_alone = (threading.current_thread() is threading.main_thread()
                and not isinstance(context.run.strategy, tf.distribute.ParameterServerStrategy))
    if is_alone and not (is_in_trace() or is_in_scope() or may_be_recorded()
                         or tf.config.functions_run_eagerly()):
      with self._swapped(), VariableScope({}, drops=True, for_python=True):
        yield
      return
    values = {**values_of_scope(), **{
        id(variable): tf.convert_to_tensor(average)
        for variable, average in zip(
            self._variables, self._whole([each.value for each in self.values]), strict=True)}}
    with calls_of_functions(True, self._check), VariableScope(values, drops=True):
      yield

  @contextlib.contextmanager
  def _swapped(self) -> Iterator[None]:
    averages = self._whole([own_value(average) for average in self.values])
    pairs = [pair for variable, average in zip(self._variables, averages, strict=True)
             for pair in _paired(copies_of(own_value(variable)), average)]
    weights = [weight.read_value() for weight, _ in pairs]  # No number is copied, here and below.
    try:
      for weight, average in pairs:
        weight.assign(average, read_value=False)
      yield
    finally:
      for (weight, _), value in zip(pairs, weights, strict=True):
        weight.assign(value, read_value=False)

  def _whole(self, values: Sequence[Any]) -> list[Any]:
    """The values of the averages; tensors of those that are divided over the replicas."""
    if self._shards[0] is None:
      return list(values)
    with exchanged(own=len(copies_of(own_value(self.values[0]))), of=self._shards[0].count):
      if context.num_replicas() > 1:
        rows = context.once(
            lambda: collectives.gather_parts(list(map(tf.convert_to_tensor, values))))
      else:
        rows = gathered(values)
    return [value.shards.tensors(x)[0] for value, x in zip(values, rows, strict=True)]

  def _check(self, compiled: Any) -> None:
    """Raises a UsageError if a graph that is called here computes with the weights."""
    handles = {id(copy.handle) for v in self._variables for copy in copies_of(own_value(v))}
    if any(id(captured) in handles for captured in compiled.captured_inputs):
      raise UsageError(f"averaged_weights: '{compiled.graph.name}' was already compiled by "
                       "get_concrete_function, and would use the weights, not their averages; "
                       "call the tf.function itself, or the plain function")


def _paired(weights: Sequence[Any], average: Any) -> Iterator[tuple[Any, Any]]:
  """Each copy of a weight with its copy of an average, or with the tensor that is for all."""
  averages = [average] * len(weights) if isinstance(average, tf.Tensor) else copies_of(average)
  return zip(weights, averages, strict=True)


def _parts_of(variable: keras.Variable, replicas: int) -> keras.Variable:
  shards = Shards([variable.shape], replicas, variable.shape)
  with tf.distribute.get_strategy().extended.colocate_vars_with(variable.value):
    average = keras.Variable("zeros", shape=[shards.length], dtype=variable.dtype, trainable=False,
                             name=f"{variable.name}_average", synchronization="on_read",
                             aggregation="only_first_replica")
  divide(average.value, shards)
  begin(average.value, [variable.value])
  return average


def _copy_of(variable: keras.Variable) -> keras.Variable:
  with tf.distribute.get_strategy().extended.colocate_vars_with(variable.value):
    return keras.Variable(lambda shape, dtype: tf.cast(tf.identity(variable.value), dtype),
                          shape=variable.shape, dtype=variable.dtype, trainable=False,
                          name=f"{variable.name}_average", aggregation="only_first_replica")
