"""Variables of which every replica keeps a copy: made here, found again, and changed in parts."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from replicator.step import context
from replicator.step.tensorflow_internals import wrapped_variable


def variable(name: str, shape: tuple, initializer: str, dtype: str) -> keras.Variable:
  """A variable of which every replica keeps its own copy, since all compute the same value.

  Writing it needs no collective, unlike a mirrored variable, which broadcasts.
  """
  return keras.Variable(keras.initializers.get(initializer), shape=shape, dtype=dtype,
                        trainable=False, autocast=False, name=name,
                        synchronization="on_read", aggregation="only_first_replica")


def copies_of(variable: Any) -> list[Any]:
  """The plain variables behind a distributed one that are of this process."""
  values = getattr(variable, "values", None)
  if isinstance(values, tuple):  # One for each replica of a synchronous strategy.
    return list(values)
  return [wrapped_variable(variable)]


def update(variables: Sequence[tf.Variable], function: Callable[..., None], *args: tf.Tensor
           ) -> None:
  """Calls `function(copies, *args)` with every replica's copies of some variables, from its step.

  The copies are plain variables, in the order of `variables`, to be changed in place: scatter
  into them, or assign. All replicas must call it with equal tensors, such as those of
  `all_concat`; then all copies stay equal. Where replicas share a variable it is called once. In
  plain eager code it is called for the copies of this process.

  Args:
    variables: made in the strategy's scope, with the aggregation ONLY_FIRST_REPLICA.
    function: changes variables, and returns nothing.
    args: tensors.
  """
  of_replicas = list(zip(*map(copies_of, variables), strict=True))
  if not context.current().is_step:
    for copies in of_replicas:
      function(copies, *args)
    return

  def on_copies(first: tf.Variable, *args: tf.Tensor) -> None:
    # tf.distribute hands over a copy of the one variable that it is asked to update.
    function(next(copies for copies in of_replicas if copies[0] is copies_of(first)[0]), *args)

  tf.distribute.get_replica_context().merge_call(
      lambda strategy, *args: strategy.extended.update(variables[0], on_copies, args, group=False),
      args=args)
