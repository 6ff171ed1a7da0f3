"""Where am I: which replica, of how many, at which step - inside a step and in plain eager code.

The replica's identity comes from `tf.distribute` itself; this module adds what it does not
know: the number of the training step, and how often each random stream was drawn in it.
Outside a step, code runs as replica 0 of 1 at step 0.
"""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator

import tensorflow as tf


class StepContext:
  """What one replica knows of the step it is tracing or running.

  Attributes:
    step: the number of the training step, a scalar int64 tensor.
    xla: whether XLA compiles the step.
    graph: the graph the step is traced into, or None when it runs eagerly.
    draws: how many times each named random stream was drawn so far in this step.
  """

  def __init__(self, step: tf.Tensor, xla: bool = False):
    self.step = step
    self.xla = xla
    self.graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    self.draws: Counter[str] = Counter()


class _Local(threading.local):
  """One stack a thread: under MirroredStrategy every replica is traced in its own thread."""

  def __init__(self):
    self.stack: list[StepContext] = []


_local = _Local()
_outside = StepContext(step=0)


def current() -> StepContext:
  """The context of the running step, or the process-wide one outside any step."""
  return _local.stack[-1] if _local.stack else _outside


@contextlib.contextmanager
def entered(step: tf.Tensor, xla: bool = False) -> Iterator[None]:
  """Makes the body a replica's step number `step` (scalar int64)."""
  _local.stack.append(StepContext(step, xla))
  try:
    yield
  finally:
    _local.stack.pop()


def reset() -> None:
  """Forgets the draws made outside steps, so that a newly seeded run starts alike."""
  _outside.draws.clear()


def replica_id() -> int | tf.Tensor:
  """This replica's number in `[0, num_replicas())`: an int, or in a compiled step an int32 []."""
  replica_context = tf.distribute.get_replica_context()
  return replica_context.replica_id_in_sync_group if replica_context else 0


def num_replicas() -> int:
  """How many replicas run this step together, over all workers; 1 outside a step."""
  replica_context = tf.distribute.get_replica_context()
  return replica_context.num_replicas_in_sync if replica_context else 1


def step_number() -> tf.Tensor:
  """The number of the training step being run, a scalar int64 (0 outside a step)."""
  return tf.cast(current().step, tf.int64)
