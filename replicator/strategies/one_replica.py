"""Makes a step see one replica, so that losses are not divided by the number of replicas.

Keras losses, `tf.nn.compute_average_loss` and others divide by the strategy's number of replicas,
for optimizers that sum gradients over replicas. Our `Optimizer` averages them, so a step's loss is
the mean over the replica's own examples.

Also keeps code that one of several workers runs alone, such as an evaluation on the chief, from
reading a value that is spread over all replicas.
"""

import contextlib
import contextvars
import inspect
import itertools
import os
import traceback
from collections.abc import Iterator
from typing import Any

from replicator.errors import ENGINE, UsageError, is_foreign
from replicator.step import context

import tensorflow as tf

_DISTRIBUTE = os.path.dirname(inspect.getfile(tf.distribute.Strategy)) + os.sep


def seen_in_steps(strategy: tf.distribute.Strategy) -> tf.distribute.Strategy:
  """Makes a strategy report one replica to libraries that are called in a step.

  This package and `tf.distribute` itself get the true number. The user's own code gets an error.
  """
  kind = type(strategy)
  if strategy.num_replicas_in_sync > 1 and not hasattr(kind, "is_seen_in_steps"):
    # Keep the name: some code checks it.
    strategy.__class__ = type(kind.__name__, (kind,), {
        "num_replicas_in_sync": property(_num_replicas), "reduce": _reduce, "gather": _gather,
        "is_seen_in_steps": True})
  return strategy


def _num_replicas(strategy: tf.distribute.Strategy) -> int:
  file = _asking("num_replicas_in_sync")
  if (not context.current().is_step or tf.distribute.in_cross_replica_context()
      or file.startswith((ENGINE, _DISTRIBUTE))):
    return super(type(strategy), strategy).num_replicas_in_sync
  if is_foreign(file):
    return 1
  raise UsageError("num_replicas_in_sync: a loss is the mean over the batch that the step gets, "
                   "and Optimizer.apply averages over replicas; remove the division, or use "
                   "replicator.num_replicas() if you need the number for something else")


_is_apart = contextvars.ContextVar("is_apart", default=False)


@contextlib.contextmanager
def apart(is_apart: bool = True) -> Iterator[None]:
  """Marks that this worker runs the body without the others, if `is_apart`.

  Reading a value that is spread over all replicas, such as the sum of a Keras metric that was made
  with the step, raises a UsageError there, since it would wait for the other workers.
  """
  token = _is_apart.set(is_apart)
  try:
    yield
  finally:
    _is_apart.reset(token)


def _reduce(strategy: tf.distribute.Strategy, reduce_op: Any, value: Any, axis: int | None = None
            ) -> Any:
  _refuse_apart(value)
  return super(type(strategy), strategy).reduce(reduce_op, value, axis)


def _gather(strategy: tf.distribute.Strategy, value: Any, axis: int) -> Any:
  _refuse_apart(value)
  return super(type(strategy), strategy).gather(value, axis)


def _refuse_apart(value: Any) -> None:
  """Raises a UsageError if the chief runs alone, since reading `value` would wait for others."""
  if _is_apart.get():
    name = getattr(value, "name", "").removesuffix(":0")
    raise UsageError(f"{f'the variable {name!r}' if name else 'a value'} has a part on each "
                     "replica, but only the chief reads it; give evaluate, or the class of the "
                     "callback, the attribute on_all_workers = True, or create a metric in the "
                     "evaluation itself, not in the step")


def refuse_own_reductions() -> None:
  """Makes `ReplicaContext.all_reduce` of this replica raise an error if user code calls it."""
  replica: Any = tf.distribute.get_replica_context()
  all_reduce = replica.all_reduce

  def checked(*args: Any, **kwargs: Any) -> Any:
    file = _asking()
    if not (file.startswith(ENGINE) or is_foreign(file)):
      raise UsageError("ReplicaContext.all_reduce: Optimizer.apply averages gradients over "
                       "replicas; pass it those of the step, and use replicator.all_mean or "
                       "all_sum for anything else")
    return all_reduce(*args, **kwargs)

  replica.all_reduce = checked


def _asking(through: str = "") -> str:
  """Returns the file that called the caller, skipping frames of functions named `through`."""
  frames = itertools.islice(traceback.walk_stack(inspect.currentframe()), 2, None)
  asking = next(frame for frame, _ in frames if frame.f_code.co_name != through)
  # A function converted by AutoGraph is in a generated file, but has the globals of its own file.
  return asking.f_globals.get("__file__") or asking.f_code.co_filename
