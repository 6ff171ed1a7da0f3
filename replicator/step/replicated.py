"""State that every replica keeps a copy of: variables that hold the same value everywhere.

Python code reads and writes them between steps, with `read` and `assign`. A step changes them in
place, with `update`, and counts each batch once, in however many micro-batches it comes:

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


def variable(value: Any, dtype: Any = None, name: str | None = None) -> tf.Variable:
  """Makes a variable that is not trained, and of which every replica has a copy.

  Call it in the strategy's scope. `value` is a number, an array, or a function that returns a
  tensor, which TensorFlow calls on each device, so that a large value is not copied from device to
  device. A `dtype` of None keeps the dtype of an array.
  """
  if not callable(value) and dtype is None:
    dtype = np.asarray(value).dtype
  return tf.Variable(value, trainable=False, dtype=dtype, name=name,
                     aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)


def layer_variable(name: str, shape: tuple, initializer: str, dtype: str) -> keras.Variable:
  """Makes a Keras variable for a layer's state, which all replicas compute alike.

  When the layer assigns to it in its `call`, each replica writes its own copy.
  """
  # A mirrored variable would broadcast the value of the first replica at every write.
  return keras.Variable(keras.initializers.get(initializer), shape=shape, dtype=dtype,
                        trainable=False, autocast=False, name=name,
                        synchronization="on_read", aggregation="only_first_replica")


def copies_of(variable: Any) -> list[Any]:
  """The plain variables of this process behind a distributed one; one if the replicas share it."""
  if _is_copied(variable):
    return list(variable.values)
  # Central storage and parameter servers wrap the one that there is.
  return [variable.get() if hasattr(variable, "get") else variable]


def _is_copied(variable: Any) -> bool:
  """Whether each replica has its own copy, as under a synchronous strategy."""
  return isinstance(getattr(variable, "values", None), tuple)


def read(variable: tf.Variable) -> np.ndarray:
  """The value of a replicated variable, for Python code between steps: a NumPy copy."""
  return np.array(copies_of(variable)[0].read_value())


def assign(variable: tf.Variable, value: Any, where: np.ndarray | None = None) -> None:
  """Writes a value, the same in every process, into all copies; for Python code between steps.

  `value` has the variable's shape. `where`, bool of that shape or None for all, says which elements
  to write; it saves time if few elements of a large variable change.
  """
  if where is None:
    for copy in copies_of(variable):
      copy.assign(value)
    return
  places, changed = np.argwhere(where), np.asarray(value)[where]
  for copy in copies_of(variable):
    _scatter(copy, places, changed)


@tf.function(autograph=False, reduce_retracing=True)
def _scatter(variable: tf.Variable, places: tf.Tensor, values: tf.Tensor) -> None:
  # Compiled, because TensorFlow cannot scatter eagerly into a variable of a parameter server.
  variable.scatter_nd_update(places, values)


def gather(variable: tf.Variable, index: tf.Tensor) -> tf.Tensor:
  """Rows of this replica's copy of a variable, in a step: `[n, ...], [k] -> [k, ...]`.

  On several replicas, `tf.gather` would copy the whole variable first.
  """
  copies, replica = copies_of(variable), tf.get_static_value(context.copy_id())
  if replica is None:  # The replicas of a TPU are traced as one.
    return tf.gather(variable, index)
  return tf.gather(copies[int(replica) % len(copies)], index)


def before(variable: tf.Variable) -> tf.Tensor:
  """The value of a replicated variable before the batch: the same in all of its micro-batches."""
  return context.once(lambda: tf.convert_to_tensor(variable))


def num_microbatches() -> int:
  """The number of micro-batches that the batch of this step is divided into; 1 if it is whole."""
  part = context.current().microbatch
  return part.count if part else 1


def average_change(old: tf.Tensor, new: tf.Tensor, share: float, moving: Any = None) -> tf.Tensor:
  """The change of a moving average by this batch, `share (new - old)`, or by this micro-batch.

  `old` is the average before the batch or micro-batch, and `new` the mean over its examples. The
  changes of all micro-batches add up to that of the whole batch. An average that a batch may move
  several times, one after another, is `moving`, and `old` is what it is before each. Where a scope
  drops the changes of Keras variables, as that of averaged weights does, each micro-batch makes the
  change of a whole batch.
  """
  part, count = context.current().microbatch, num_microbatches()
  if part is None or (isinstance(moving, keras.Variable) and drops_assignments()):
    return share * (new - old)
  place = context.once(lambda: _count_move(part, moving))
  # The first micro-batch subtracts the share of the old value for all.
  if part.is_first:
    return share / count * (new - count * old)
  # What moves the average later in the batch did so in the first micro-batch already.
  later = 0 if moving is None else part.moves[id(moving)] - place
  return share / count * (1 - share) ** later * new


def _count_move(part: context.Microbatch, moving: Any) -> int:
  part.moves[id(moving)] += 1
  return part.moves[id(moving)]


def update(variables: Sequence[tf.Variable], function: Callable[..., None], *args: Any) -> None:
  """Changes replicated variables in place: calls `function(copies, *args)` for every replica.

  `copies` are the replica's plain variables, in the order of `variables`, for `function` to assign
  to or to scatter into. In a step, all replicas must pass equal tensors, such as those of
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
  """Calls `function(copies, *args)` once, after every replica has come here."""
  tf.distribute.get_replica_context().merge_call(
      lambda strategy, *args: strategy.extended.update(
          variables[0], lambda _, *args: function(copies, *args), args, group=False), args=args)
