"""The number of replicas as a step may see it: losses that divide by it divide by one.

The losses of Keras, `tf.nn.compute_average_loss` and others ask the strategy for the number of
replicas, and divide by it, for an optimizer that adds up gradients over replicas. An `Optimizer`
takes their mean, so a step's loss is the mean over the replica's own examples.
"""

import inspect
import itertools
import os
import traceback
from typing import Any

from replicator.errors import ENGINE, UsageError, is_foreign
from replicator.step import context

import tensorflow as tf

_DISTRIBUTE = os.path.dirname(inspect.getfile(tf.distribute.Strategy)) + os.sep


def seen_in_steps(strategy: tf.distribute.Strategy) -> tf.distribute.Strategy:
  """Makes a strategy of several replicas say to libraries in a step that it has one.

  It says the truth to this package and to `tf.distribute` itself, and refuses the user's own code.
  """
  kind = type(strategy)
  if strategy.num_replicas_in_sync > 1 and not hasattr(kind, "is_seen_in_steps"):
    # The same name: some code looks at it.
    strategy.__class__ = type(kind.__name__, (kind,), {
        "num_replicas_in_sync": property(_num_replicas), "is_seen_in_steps": True})
  return strategy


def _num_replicas(strategy: tf.distribute.Strategy) -> int:
  file = _asking("num_replicas_in_sync")
  if (not context.current().is_step or tf.distribute.in_cross_replica_context()
      or file.startswith((ENGINE, _DISTRIBUTE))):
    return super(type(strategy), strategy).num_replicas_in_sync
  if is_foreign(file):
    return 1
  raise UsageError("num_replicas_in_sync: a loss is the mean over the batch that the step gets, "
                   "and Optimizer.apply averages over replicas; drop the division, or write "
                   "replicator.num_replicas() if the number is for something else")


def refuse_own_reductions() -> None:
  """Makes `all_reduce` of this replica's context, one of several, refuse the user's own calls."""
  replica: Any = tf.distribute.get_replica_context()
  all_reduce = replica.all_reduce

  def checked(*args: Any, **kwargs: Any) -> Any:
    file = _asking()
    if not (file.startswith(ENGINE) or is_foreign(file)):
      raise UsageError("ReplicaContext.all_reduce: Optimizer.apply averages gradients over "
                       "replicas; pass it those of the step, and write replicator.all_mean or "
                       "all_sum for anything else")
    return all_reduce(*args, **kwargs)

  replica.all_reduce = checked


def _asking(through: str = "") -> str:
  """The file that calls the caller of this function, but for calls through functions of a name."""
  frames = itertools.islice(traceback.walk_stack(inspect.currentframe()), 2, None)
  asking = next(frame for frame, _ in frames if frame.f_code.co_name != through)
  # What AutoGraph makes of a function has the globals of its file, and is in another file itself.
  return asking.f_globals.get("__file__") or asking.f_code.co_filename
