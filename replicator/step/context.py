"""Where am I: which replica, of how many, at which step - inside a step and in plain eager code.

The replica's identity comes from `tf.distribute` itself; this module adds what it does not
know: the number of the training step, the micro-batch, how often each random stream was drawn,
which collectives were called in the step, and what it tells of itself. Outside a step, code
runs as replica 0 of 1 at step 0.
"""

import contextlib
import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import tensorflow as tf

_T = TypeVar("_T")


@dataclasses.dataclass
class Microbatch:
  """Which part of the replica's batch is computed now; see `replicator.microbatch`.

  Attributes:
    count: how many parts there are.
    index: the number of this part: an int, or in a compiled loop an int32 [].
    is_first: whether this is part 0.
    first_values: what `once` computed in part 0, in the order of its calls.
    replayed: how many of them this part has used.
  """

  count: int
  index: int | tf.Tensor = 0
  is_first: bool = True
  first_values: list[Any] = dataclasses.field(default_factory=list)
  replayed: int = 0


class StepContext:
  """What one replica knows of the step it is tracing or running.

  Attributes:
    step: the number of the training step, a scalar int64 tensor.
    xla: whether XLA compiles the step.
    graph: the graph the step is traced into, or None when it runs eagerly.
    draws: how many times each named random stream was drawn so far in this step.
    microbatch: the part of the batch that is computed, or None where it is not divided.
    collectives: the collectives called so far in this step, each in words.
    scaled_for: the optimizers that scaled a loss since their last update in this step.
    signals: what `signal` recorded, or None where nobody asked.
    on_update: called at each update of an optimizer, when it is traced, with the optimizer, its
      variables, and their gradients before and after the mean over replicas; or None.
    is_step: False for code that runs outside any step.
  """

  def __init__(self, step: tf.Tensor, xla: bool = False, is_step: bool = True):
    self.is_step = is_step
    self.step = step
    self.xla = xla
    self.graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    self.draws: Counter[str] = Counter()
    self.microbatch: Microbatch | None = None
    self.collectives: list[str] = []
    self.scaled_for: set[Any] = set()
    self.signals: list[tuple[Any, dict[str, tf.Tensor]]] | None = None
    self.on_update: Callable[[Any, list, list[tf.Tensor], list[tf.Tensor]], None] | None = None


class _Local(threading.local):
  """One stack a thread: under MirroredStrategy every replica is traced in its own thread."""

  def __init__(self):
    self.stack: list[StepContext] = []


_local = _Local()
_outside = StepContext(step=0, is_step=False)
_global_batch_size = 1
_num_input_pipelines = 1


def current() -> StepContext:
  """The context of the running step, or the process-wide one outside any step."""
  return _local.stack[-1] if _local.stack else _outside


@contextlib.contextmanager
def entered(step: tf.Tensor, xla: bool = False) -> Iterator[StepContext]:
  """Makes the body a replica's step number `step` (scalar int64)."""
  _local.stack.append(StepContext(step, xla))
  try:
    yield _local.stack[-1]
  finally:
    _local.stack.pop()


def reset() -> None:
  """Forgets the draws made outside steps, so that a newly seeded run starts alike."""
  _outside.draws.clear()


def once(compute: Callable[[], _T]) -> _T:
  """`compute()`, for what happens once for each batch: later micro-batches get the first's value.

  Such is a state that advances with every batch, as the vector of a power iteration does.
  """
  part = current().microbatch
  if part is None:
    return compute()
  if part.is_first:
    part.first_values.append(compute())
    return part.first_values[-1]
  part.replayed += 1
  return part.first_values[part.replayed - 1]


def signal(owner: Any, compute: Callable[[], dict[str, tf.Tensor]]) -> None:
  """Records some scalars [] by which `owner`, a layer or optimizer, tells how it is doing.

  They are computed only where a caller of the step asked for them: see `training.signals`.
  """
  now = current()
  # Of a loop's body, such as that of later micro-batches, no tensor is to be had outside.
  is_later_part = now.microbatch is not None and not now.microbatch.is_first
  if now.signals is not None and not is_later_part and not in_inner_graph():
    now.signals.append((owner, compute()))


def in_inner_graph() -> bool:
  """Whether a graph is traced here that the step has inside: of a tf.cond, loop or function."""
  return (not tf.executing_eagerly()
          and tf.compat.v1.get_default_graph() is not current().graph)


def replica_id() -> int | tf.Tensor:
  """This replica's number in `[0, num_replicas())`: an int, or in a compiled step an int32 []."""
  replica_context = tf.distribute.get_replica_context()
  return replica_context.replica_id_in_sync_group if replica_context else 0


def num_replicas() -> int:
  """How many replicas run this step together, over all workers; 1 outside a step."""
  replica_context = tf.distribute.get_replica_context()
  return replica_context.num_replicas_in_sync if replica_context else 1


def set_global_batch_size(size: int) -> None:
  """Sets how many examples a step has over all replicas; `replicator.train` does."""
  global _global_batch_size
  _global_batch_size = size


def set_num_input_pipelines(number: int) -> None:
  """Sets how many processes read inputs or act for the run; `replicator.train` does."""
  global _num_input_pipelines
  _num_input_pipelines = number


def num_input_pipelines() -> int:
  """How many processes of the run read inputs or act, each for its part of the global batch."""
  return _num_input_pipelines


def batch_size() -> int:
  """How many examples of the global batch are this replica's; outside a step all of them.

  For a step that makes its own examples: in one with `inputs` its batch tells.
  """
  return _global_batch_size // num_replicas()


def step_number() -> tf.Tensor:
  """The number of the training step being run, a scalar int64 (0 outside a step)."""
  return tf.cast(current().step, tf.int64)
