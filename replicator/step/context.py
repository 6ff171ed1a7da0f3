"""The context that code runs in: the run, the step, and the replica.

Outside of any step, code runs as replica 0 of 1 at step 0.
"""

import contextlib
import contextvars
import copy
import dataclasses
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from replicator.errors import UsageError
from replicator.internals.tensorflow_internals import in_second_pass_of_recompute_grad
from replicator.step.hooks import Hook

import tensorflow as tf

_T = TypeVar("_T")


Calls = dict[int, traceback.StackSummary | None]
"""The first call of each layer, by id; None if it was ever called in training mode."""


@dataclasses.dataclass
class Microbatch:
  """The part of the replica's batch that is being computed; see `replicator.microbatch`."""

  count: int  # The number of parts.
  index: int | tf.Tensor = 0  # The index of this part; in a compiled loop an int32 [].
  is_first: bool = True
  first_values: list[Any] = dataclasses.field(default_factory=list)  # Of `once`, in part 0.
  replayed: int = 0  # How many of `first_values` this part has used.
  # How many times the first part moved each average; see `replicated.average_change`.
  moves: Counter[int] = dataclasses.field(default_factory=Counter)
  # Returns the sum of the mask of each `mean`, [], over all parts and replicas. None while the sums
  # are computed from the whole batch; each replica's own go to `own_weights`.
  weights: Callable[[], list[tf.Tensor]] | None = None
  own_weights: list[tf.Tensor] = dataclasses.field(default_factory=list)
  means: int = 0  # How many times this part has called `mean`.


@dataclasses.dataclass
class Division:
  """How a step divides a replica's batch, into micro-batches or for several updates."""

  smallest: int | None = None  # The size of the smallest part; None if the batch is not divided.
  is_microbatched: bool = False

  def note(self, examples: int, is_microbatched: bool = False) -> None:
    """Records a division into parts of `examples` examples each."""
    self.smallest = min(examples, self.smallest or examples)
    self.is_microbatched |= is_microbatched


class StepContext:
  """Per-replica state of the step being traced or run."""

  def __init__(self, step: int | tf.Tensor, xla: bool = False, is_step: bool = True,
               streams: str = "", hooks: Sequence[Hook] = ()):
    self.is_step = is_step  # False for `RunContext.outside`, and before a step.
    self.streams = streams  # A prefix for the names of random streams.
    self.step = step  # The number of the training step, int64 [].
    self.xla = xla  # Whether XLA compiles the step, as a whole or in parts.
    self.xla_in_parts = False  # Whether XLA compiles between collectives; see `step.xla`.
    self.alike = False  # Whether all replicas must compute the same bits now; see `step.xla`.
    self.as_one = False  # Whether every replica computes the global batch, as if it were alone.
    self.in_one_piece = False  # Whether `microbatch.n` is ignored.
    self.division = Division()  # How the step divides the replica's batch.
    self.graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    self.draws: Counter[str] = Counter()  # The draws so far from each random stream, by name.
    self.microbatch: Microbatch | None = None  # None if the batch is not divided.
    self.collectives: list[str] = []  # Descriptions of the collectives called so far.
    self.has_ended = False  # Whether the step has returned on this replica.
    self.kept: dict[Any, Any] = {}  # What objects keep until the end of the step.
    self.hooks = hooks
    self.is_recomputing = False  # Whether this is the second pass of `recompute_grad`.
    self.updated: set[int] = set()  # The ids of variables that an update has a gradient for.
    self.calls: Calls = {}  # Calls of layers that behave differently in training; see `called`.
    self.is_apart = False  # Whether it is traced separately, where replicas cannot communicate.


@dataclasses.dataclass
class RunContext:
  """Facts of a whole run, in this process; for the seed, see `random.set_seed`."""

  seed: int = 0
  rollbacks: int = 0
  steps: int | None = None  # The length of the run; None outside of a run.
  global_batch_size: int = 1  # The number of examples of one update, over all replicas.
  batches: int = 1  # The number of such batches that one step takes; see `batches_of`.
  num_input_pipelines: int = 1  # The processes that read inputs or act in environments.
  strategy: tf.distribute.Strategy | None = None  # Of the newest `Replicator`.
  is_loaded: bool = False  # Whether the step was loaded onto one device; see `app.load`.
  is_loading: bool = False  # Whether a step is being loaded now.
  is_program: bool = False  # Whether the process ends with its run; see `app.run`.
  outside: StepContext = dataclasses.field(
      default_factory=lambda: StepContext(step=0, is_step=False))

  @property
  def examples(self) -> int:
    """The number of examples of one step, over all replicas."""
    return self.batches * self.global_batch_size


run = RunContext()  # The run of this process. `replicator.train` sets its attributes.


def remember_run() -> Callable[[], None]:
  """Returns a function that restores the current attributes of `run` and its draws outside."""
  before, draws, step = dataclasses.replace(run), run.outside.draws.copy(), run.outside.step

  def put_back() -> None:
    vars(run).update(vars(before))
    run.outside.draws.clear()
    run.outside.draws.update(draws)
    run.outside.step = step

  return put_back


# Each thread has its own value: under MirroredStrategy, one thread traces each replica.
_current: contextvars.ContextVar[StepContext] = contextvars.ContextVar("step")


def current() -> StepContext:
  """Returns the context of the running step, or `run.outside`."""
  return _current.get(run.outside)


@contextlib.contextmanager
def entered(step: tf.Tensor, xla: bool = False, hooks: Sequence[Hook] = ()
            ) -> Iterator[StepContext]:
  """Runs the body as one replica's step number `step` (int64 [])."""
  entered_step = StepContext(step, xla, hooks=hooks)
  token = _current.set(entered_step)
  try:
    yield entered_step
  finally:
    _current.reset(token)


@contextlib.contextmanager
def before_step(number: int) -> Iterator[None]:
  """Runs the body before step `number`, with random draws that differ from those of the step."""
  token = _current.set(StepContext(number, is_step=False, streams="before a step/"))
  try:
    yield
  finally:
    _current.reset(token)


@contextlib.contextmanager
def streams_apart(name: str) -> Iterator[None]:
  """Runs the body in the current context, with separate random streams prefixed with `name`."""
  apart = copy.copy(current())
  apart.streams, apart.draws = f"{apart.streams}{name}/", Counter()
  token = _current.set(apart)
  try:
    yield
  finally:
    _current.reset(token)


def once(compute: Callable[[], _T]) -> _T:
  """Calls `compute` once per batch; later micro-batches reuse the value of the first."""
  part = current().microbatch
  if part is None:
    return compute()
  if part.is_first:
    part.first_values.append(compute())
    return part.first_values[-1]
  part.replayed += 1
  return part.first_values[part.replayed - 1]


def measured(owner: Any, compute: Callable[[], dict[str, tf.Tensor]]) -> None:
  """Reports scalars [] of a layer or an optimizer, by name, to the hooks; see `Hook.measured`."""
  now = current()
  # Tensors of a loop's body, such as the loop over later micro-batches, cannot be used outside it.
  is_later_part = now.microbatch is not None and not now.microbatch.is_first
  if now.hooks and not (now.is_recomputing or is_later_part or in_inner_graph()):
    values = compute()
    for hook in now.hooks:
      hook.measured(owner, values)


def called(layer: Any, training: bool | None) -> None:
  """Records a call of a layer that behaves differently in training, while a step is traced."""
  now = current()
  if not now.is_step or now.graph is None or not layer.trainable:
    return
  if training:
    now.calls[id(layer)] = None
  elif id(layer) not in now.calls:
    now.calls[id(layer)] = traceback.extract_stack()


def check_not_recomputed(what: str) -> None:
  """Raises a UsageError if TensorFlow or Keras is recomputing the caller, which repeats `what`."""
  if in_second_pass_of_recompute_grad():
    raise UsageError(f"{what} again when tf.recompute_grad (keras.remat, keras.RematScope) "
                     "recomputes it, which makes gradients wrong; use replicator.recompute_grad")


def in_inner_graph() -> bool:
  """Returns whether code is being traced into a tf.cond, loop or function inside the step."""
  return (not tf.executing_eagerly()
          and tf.compat.v1.get_default_graph() is not current().graph)


def replica_id() -> int | tf.Tensor:
  """Returns the number of this replica, from 0: an int, or in a compiled step an int32 []."""
  return 0 if current().as_one else copy_id()


def copy_id() -> int | tf.Tensor:
  """Returns the number of the replica whose devices and variables are used; like `replica_id`."""
  replica_context = tf.distribute.get_replica_context()
  return replica_context.replica_id_in_sync_group if replica_context else 0


def num_replicas() -> int:
  """Returns the number of replicas that run this step, over all workers; 1 outside of a step."""
  return 1 if current().as_one else num_copies()


def num_copies() -> int:
  """Returns the number of replicas that hold variables, over all workers; 1 outside of a step."""
  replica_context = tf.distribute.get_replica_context()
  return replica_context.num_replicas_in_sync if replica_context else 1


def batch_size() -> int:
  """Returns this replica's share of `train.global_batch_size`, the batch of one update.

  Call it in a step that generates its own examples. A step with `inputs`, or a function that gets
  micro-batches, should read the size from its batch instead: `batch.shape[0]`. Outside of a step,
  this process counts as one replica with the global batch.
  """
  return run.global_batch_size // num_replicas()


def step_number() -> tf.Tensor:
  """Returns the number of the running training step, from 0, int64 [].

  Outside of a step, it is the number of completed steps, which is also that of the next step.
  """
  return tf.cast(current().step, tf.int64)
