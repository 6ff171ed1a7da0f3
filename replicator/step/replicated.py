"""Replicated state: variables with an identical copy on every replica.

Python code reads and writes them between steps, with `read` and `assign`. A step changes them in
place with `update`. `average_change` counts each batch once for any number of micro-batches:

    self.mean = replicated.variable(0.0, keras.config.floatx())     # in the constructor of a step
    ...
    before = replicated.before(self.mean)
    change = replicated.average_change(before, replicator.all_mean(tf.reduce_mean(x)), share=0.01)
    replicated.update([self.mean], lambda copies, change: copies[0].assign_add(change), change)
"""

from collections.abc import Callable, Sequence
from typing import Any

from replicator.internals.keras_internals import drops_assignments
from replicator.step import context, xla

import keras
import numpy as np
import tensorflow as tf


def variable(value: Any, dtype: Any = None, name: str | None = None,
             shape: Sequence[int | None] | None = None) -> tf.Variable:
  """Creates a non-trainable variable with a copy on every replica.

  Call it in the strategy's scope. `value` is a number, an array, or a function that returns a
  tensor. TensorFlow calls the function on each device, so a large value is not copied between
  devices. `dtype=None` keeps the dtype of an array. `shape` defaults to that of the value; axes
  that are None may change size in later assignments.
  """
  if not callable(value) and dtype is None:
    dtype = np.asarray(value).dtype
  return tf.Variable(value, trainable=False, dtype=dtype, name=name, shape=shape,
                     aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)


def layer_variable(name: str, shape: tuple, initializer: str, dtype: str) -> keras.Variable:
  """Creates a Keras variable for layer state that all replicas compute identically.

  When the layer assigns to it in its `call`, each replica writes its own copy.
  """
  # A mirrored variable would broadcast the first replica's value at every write.
  return keras.Variable(keras.initializers.get(initializer), shape=shape, dtype=dtype,
                        trainable=False, autocast=False, name=name,
                        synchronization="on_read", aggregation="only_first_replica")


def copies_of(variable: Any) -> list[Any]:
  """Returns this process's plain variables behind a distributed one; one if replicas share it."""
  if _is_copied(variable):
    return list(variable.values)
  # Central storage and parameter servers wrap a single variable.
  return [variable.get() if hasattr(variable, "get") else variable]


def _is_copied(variable: Any) -> bool:
  """Returns whether each replica has its own copy, as under a synchronous strategy."""
  return isinstance(getattr(variable, "values", None), tuple)


def read(variable: tf.Variable) -> np.ndarray:
  """Returns the value of a replicated variable as a NumPy copy, for Python code between steps."""
  return np.array(copies_of(variable)[0].read_value())


def assign(variable: tf.Variable, value: Any, where: np.ndarray | None = None) -> None:
  """Writes a value, the same in every process, to all copies; for Python code between steps.

  `value` has the variable's shape. `where`, int64 `[k, d]`, holds the indices of the k elements or
  slices to write; None writes all. `where` saves time if few elements of a large variable change.
  """
  if where is None:
    for copy in copies_of(variable):
      copy.assign(value)
    return
  changed = np.asarray(value)[tuple(where.T)]
  for copy in copies_of(variable):
    _scatter(copy, where, changed)


@tf.function(autograph=False, reduce_retracing=True)
def _scatter(variable: tf.Variable, places: tf.Tensor, values: tf.Tensor) -> None:
  # Compiled because TensorFlow cannot scatter eagerly into a variable on a parameter server.
  variable.scatter_nd_update(places, values)


def gather(variable: tf.Variable, index: tf.Tensor) -> tf.Tensor:
  """Gathers rows of this replica's copy of a variable, in a step: `[n, ...], [k] -> [k, ...]`.

  On several replicas, `tf.gather` would copy the whole variable first.
  """
  copies, replica = copies_of(variable), tf.get_static_value(context.copy_id())
  if replica is None:  # The replicas of a TPU are traced as one.
    return tf.gather(variable, index)
  return tf.gather(copies[int(replica) % len(copies)], index)


def before(variable: tf.Variable) -> tf.Tensor:
  """Returns a replicated variable's value before the batch, the same in all micro-batches."""
  return context.once(lambda: tf.convert_to_tensor(variable))


def num_microbatches() -> int:
  """Returns the number of micro-batches of this step; 1 if the batch is not divided."""
  part = context.current().microbatch
  return part.count if part else 1


def average_change(old: tf.Tensor, new: tf.Tensor, share: float, moving: Any = None) -> tf.Tensor:
  """Returns how much a batch or micro-batch changes a moving average: `share (new - old)`.

  `old` is the average before the batch or micro-batch, and `new` is the mean over its examples. The
  changes of all micro-batches add up to that of the whole batch. If a batch may update the average
  several times in a row, pass it as `moving`; `old` is then its value before each update. In a
  scope that drops assignments to Keras variables, such as that of averaged weights, each
  micro-batch makes the change of a whole batch.
  """
  part, count = context.current().microbatch, num_microbatches()
  if part is None or (isinstance(moving, keras.Variable) and drops_assignments()):
    return share * (new - old)
  place = context.once(lambda: _count_move(part, moving))
  # The first micro-batch subtracts the share of the old value for all of them.
  if part.is_first:
    return share / count * (new - count * old)
  # Later moves in this batch were counted in the first micro-batch.
  later = 0 if moving is None else part.moves[id(moving)] - place
  return share / count * (1 - share) ** later * new


def _count_move(part: context.Microbatch, moving: Any) -> int:
  part.moves[id(moving)] += 1
  return part.moves[id(moving)]


def update(variables: Sequence[tf.Variable], function: Callable[..., None], *args: Any) -> None:
  """Changes replicated variables in place: calls `function(copies, *args)` for every replica.

  `copies` are the replica's plain variables, in the order of `variables`; `function` assigns to
  them or scatters into them. In a step, all replicas must pass equal tensors, such as those of
  `all_concat`, so that all copies stay equal. For variables that replicas share, `function` is
  called once. Outside of a step, it is called for each replica of this process.
  """
  of_replicas = list(zip(*map(copies_of, variables), strict=True))
  if context.current().is_step and context.num_copies() > 1:
    replica = tf.get_static_value(context.copy_id())
    if replica is None:  # The replicas of a TPU are traced as one; TensorFlow finds their copies.
      _update_once(variables, variables, function, args)
      return
    if not _is_copied(variables[0]):
      _update_once(variables, of_replicas[0], function, args)
      return
    of_replicas = [of_replicas[int(replica) % len(of_replicas)]]
  with xla.alike():
    for copies in of_replicas:
      with tf.device(copies[0].device):
        function(copies, *args)


def _update_once(variables: Sequence[tf.Variable], copies: Sequence[tf.Variable],
                 function: Callable[..., None], args: tuple) -> None:
  """Calls `function(copies, *args)` once, after every replica has reached this point."""
  tf.distribute.get_replica_context().merge_call(
      lambda strategy, *args: strategy.extended.update(
          variables[0], lambda _, *args: function(copies, *args), args, group=False), args=args)
