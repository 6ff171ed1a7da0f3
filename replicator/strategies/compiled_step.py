"""Compiled steps, through which `train`, `Replicator.run` and the doctor run."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from replicator.console.error_line import located
from replicator.internals.keras_internals import errors_unchanged, global_seed_state
from replicator.step import context, logical_devices, xla
from replicator.step.collectives import collectives, whole_batch
from replicator.step.hooks import Hook
from replicator.step.nest import Nest
from replicator.step.optimizers import unwrapped
from replicator.step.optimizers.optimizer import Optimizer
from replicator.step.optimizers.wrap import check_owners
from replicator.step.replicated import copies_of
from replicator.step.variables import function_of, held_by
from replicator.strategies import agreement, one_replica, xla_support
from replicator.strategies.running_call import RunningCall
from replicator.strategies.tracing import (
  draws,
  graphs,
  python_state,
  refusals,
  scalars,
  shapes,
  training_mode,
  untrained,
)
from replicator.strategies.tracing.trainable import Trainable

import tensorflow as tf
import tree

if TYPE_CHECKING:
  from replicator.strategies.replicator import Replicator


@dataclasses.dataclass
class _Traced:
  """A compiled function, for one set of `trainable` flags and one shape of batches."""

  function: Any = None  # A tf.function.
  arguments: tuple = ()  # The arguments of the first call.
  scalars: dict[str, bool] = dataclasses.field(default_factory=dict)  # Whether each is a counter.
  remarks: list[str] = dataclasses.field(default_factory=list)  # Warnings about its Python code.
  division: context.Division = dataclasses.field(default_factory=context.Division)
  updated: set[int] = dataclasses.field(default_factory=set)  # See `context.StepContext`.
  numbers: dict[str, float] = dataclasses.field(default_factory=dict)  # Attributes in Python.
  is_said: bool = False  # Whether `warnings` has reported on it.

  @functools.cached_property
  def concrete(self) -> Any:
    concrete = self.function.get_concrete_function(*self.arguments)
    self.arguments = ()  # A batch may be large.
    return concrete


class CompiledStep:
  """A step compiled for every replica, and compiled again when its `trainable` flags change.

  Args:
    replicator: the replicator that runs the step.
    step: called on each replica with its part of a batch, or with no arguments.
    steps_per_call: the number of steps per call.
    logs: whether the step returns scalars, whose means over replicas a call returns; otherwise, a
      call returns the outputs of the step on each replica of this process.
    hooks: observers of the step.
    events: makes a context in which `tf.summary` writes for the given step.
    xla: whether XLA compiles the step as configured in the replicator.
    as_one: whether a replica computes the global batch as if it were alone; the other replicas of
      this process reuse its outputs.
    in_one_piece: whether `microbatch.n` is ignored.

  Raises a UsageError if two optimizers of the step own the same variable.
  """

  def __init__(self, replicator: "Replicator", step: Callable[..., Nest], steps_per_call: int = 1,
               logs: bool = False, hooks: Sequence[Hook] = (),
               events: Callable[[tf.Tensor], contextlib.AbstractContextManager] | None = None,
               xla: bool = True, as_one: bool = False, in_one_piece: bool = False):
    check_owners(step)
    self._xla, self._as_one, self._in_one_piece = xla, as_one, in_one_piece
    self._replicator, self._step, self._hooks = replicator, step, hooks
    self._events = events or (lambda step: contextlib.nullcontext())
    self._steps_per_call, self._logs = steps_per_call, logs
    self._axis = 0 if steps_per_call == 1 else 1  # The axis of examples in a batch.
    self._optimizers = dict(held_by(step, (Optimizer,)))
    for optimizer in self._optimizers.values():
      optimizer.copied_slots.begin()
    self._trainable = Trainable(step)
    self._traced: dict[tuple, _Traced] = {}
    self._newest, self._warned = _Traced(), set[str]()
    self.without_xla = ""  # Why XLA does not compile the step.

  def __call__(self, step: int, inputs: Nest | None = None, stop: bool = False) -> RunningCall:
    """Starts the steps `step`, `step + 1`, ...; with `stop`, asks all workers to stop.

    `inputs` is this worker's part of the batch, a nest of `[n, ...]`, or of the batches of several
    steps, `[steps_per_call, n, ...]`; or None.

    Raises a UsageError if the batch does not divide evenly, or the step is invalid.
    """
    arguments = self._arguments(step, inputs, stop)

    def start() -> RunningCall:
      traced = self._newest = self._traced_for(arguments)
      # A tf.function would compare the arguments and all variables with those of its traces.
      compiled = traced.function if tf.config.functions_run_eagerly() else traced.concrete
      return RunningCall(self._replicator.start(compiled, *arguments), step, stop,
                         traced.scalars, self._steps_per_call, self._hooks)
    return xla_support.with_or_without(self._replicator, start, self._drop_xla)

  def trace(self, inputs: Nest | None) -> list[str]:
    """Traces the steps for batches like `inputs`; returns the names of their scalars."""
    def names() -> list[str]:
      self._newest = self._traced_for(self._arguments(0, inputs, False))
      return list(self._newest.scalars) if self.graph else []
    return xla_support.with_or_without(self._replicator, names, self._drop_xla)

  def _drop_xla(self, error: Exception) -> None:
    self.without_xla = xla_support.line(error, self)
    self._traced.clear()

  @property
  def graph(self) -> tf.Graph:
    """The graph of the steps; valid after the first call or `trace`."""
    return self._newest.concrete.graph

  @property
  def division(self) -> context.Division:
    """How the step divides a replica's batch; valid when `graph` is."""
    return self._newest.division

  def variables(self) -> list[tf.Variable]:
    """Returns the variables of the steps, except Keras' global generator; valid when `graph` is."""
    others = [each.value for each in [global_seed_state()] if each is not None]
    if servers := self._replicator.servers:
      others.append(servers.updates)
    handles = {id(copy.handle) for other in others for copy in copies_of(other)}
    return [v for v in self.graph.variables if id(v.handle) not in handles]

  def warnings(self) -> list[str]:
    """Returns warnings about the newest trace, each only once."""
    if tf.config.functions_run_eagerly() or self._newest.is_said:
      return []
    lines = [*filter(None, [self.without_xla]), *self._newest.remarks,
             *draws.warnings(self.graph, self._replicator.num_replicas),
             *graphs.warnings(self.graph, self._replicator.jit_compile),
             *untrained.warnings(self.graph, self._step, self._optimizers,
                                 self._trainable.unfrozen(), self._newest.updated),
             *shapes.warnings(of_batch for _, of_batch in self._traced)]
    self._newest.is_said = True
    new = [line for line in lines if line not in self._warned]
    self._warned.update(lines)
    return new

  def outdated(self) -> list[str]:
    """Returns warnings about Python numbers that have changed since the newest trace, once."""
    lines = python_state.outdated(self._newest.numbers, self._step)
    if lines:
      self._newest.numbers = {}
    return lines

  @property
  def _compiles_whole(self) -> bool:
    return self._xla and self._replicator.compiles_whole

  def _arguments(self, step: int, inputs: Nest | None, stop: bool) -> tuple:
    batch = () if inputs is None else (self._replicator.checked_batch(inputs, self._axis),)
    flag = (tf.constant(stop),) if self._logs and self._replicator.num_pipelines > 1 else ()
    return tf.constant(step, tf.int64), flag, batch

  def _traced_for(self, arguments: tuple) -> _Traced:
    key = self._trainable.flags(), tuple(
        (path, x.shape, x.dtype) for path, x in tree.flatten_with_path(arguments))
    if key in self._traced:
      return self._traced[key]
    traced = _Traced(arguments=arguments)
    # Without AutoGraph, so that the compiled code is the same source that runs eagerly.
    traced.function = tf.function(functools.partial(self._steps, traced), autograph=False,
                                  jit_compile=True if self._compiles_whole else None)
    if self._logs and self._replicator.num_pipelines > 1 and (
        not tf.config.functions_run_eagerly()):
      traced.concrete  # noqa: B018  (traces it)
      self._replicator.check_workers_agree()
    self._traced[key] = traced
    return traced

  # ---- The compiled functions -------------------------------------------------------------------

  def _steps(self, traced: _Traced, step: tf.Tensor, stop: tuple, batch: tuple) -> Any:
    """Runs all steps of a call; returns each replica's outputs, or the means of the scalars.

    The means are `[steps_per_call * scalars]`, preceded by the mean of the flag `stop` if it is
    given; they come with the outputs of the hooks.
    """
    batch = tuple(self._replicator.distribute(each, self._axis) for each in batch)
    with python_state.noted_in(traced.remarks, self._step):
      if not self._logs:
        outputs = self._on_replicas(traced, step, batch)
        return outputs[0] if self._replicator.is_async else outputs
      means, more = (self._means(traced, step, batch) if self._steps_per_call == 1 else
                     (self._loop(traced, step, batch), {}))
    if not tf.executing_eagerly():
      traced.numbers = python_state.numbers_of(self._step)
    if stop:
      means = tf.concat([tf.cast(stop[0], means.dtype)[tf.newaxis], means], 0)
      means = self._replicator.strategy.run(collectives.all_mean, args=(means,))
      means = self._replicator.local_results(means)[0]
    return means, more

  def _loop(self, traced: _Traced, first: tf.Tensor, batch: tuple) -> tf.Tensor:
    def body(i: tf.Tensor, history: tf.TensorArray) -> tuple:
      means, _ = self._means(traced, first + tf.cast(i, tf.int64), batch, i)
      return i + 1, history.write(i, means)

    history = tf.TensorArray(scalars.DTYPE, self._steps_per_call)
    history = tf.while_loop(lambda i, _: i < self._steps_per_call, body, [0, history])[1]
    return tf.reshape(history.stack(), [-1])

  def _means(self, traced: _Traced, step: tf.Tensor, batch: tuple, i: tf.Tensor | None = None
             ) -> tuple[tf.Tensor, dict]:
    """Averages the scalars of a step, the i-th of several, over this process's replicas."""
    if servers := self._replicator.servers:
      outputs, staleness = servers.measured(lambda: self._on_replicas(traced, step, batch, i))
      traced.scalars["staleness"] = False
      late = [tf.cast(staleness, outputs[0][0].dtype)]
      outputs = [(tf.concat([vector, late], 0), more) for vector, more in outputs]
    else:
      outputs = self._on_replicas(traced, step, batch, i)
    vectors, (more, *_) = zip(*outputs, strict=True)
    return vectors[0] if len(vectors) == 1 else tf.add_n(vectors) / len(vectors), more

  def _on_replicas(self, traced: _Traced, step: tf.Tensor, batch: tuple,
                   i: tf.Tensor | None = None) -> list[Nest]:
    """Runs the step number `step`, int64 [], on every replica of this process."""
    replicator = self._replicator
    replicas: list[context.StepContext] = []
    ended: list[Nest] = []  # The outputs of replicas that have returned.
    placed_or_compiled = (xla.compiled_in_parts if self._xla and replicator.compiles_parts
                          else logical_devices.gradients_placed)
    is_compiled = (self._xla and replicator.jit_compile) or replicator.name == "tpu"

    def on_replica(step: tf.Tensor, *batch: Nest) -> Nest:
      with (context.entered(step, is_compiled, self._hooks) as replica, placed_or_compiled(),
            located(), refusals.unaggregated_explained(replicator.name), errors_unchanged(),
            unwrapped.refused(), refusals.own_weights_checked(self._optimizers),
            contextlib.nullcontext() if replicas else self._events(step)):
        replicas.append(replica)
        if replicator.num_replicas > 1:
          one_replica.refuse_own_reductions()
        if i is not None:
          batch = tree.map_structure(lambda x: tf.gather(x, i), batch)
        batch = whole_batch.joined(batch) if self._as_one else batch
        if self._as_one and ended:  # Replicas are traced in turns, between their collectives.
          replica.has_ended = True
          return ended[0]
        replica.as_one, replica.in_one_piece = self._as_one, self._in_one_piece
        outputs = function_of(self._step)(*batch)
        replica.has_ended = True
        traced.updated |= replica.updated
        traced.remarks += [line for line in training_mode.left_out(
            self._step, replica.calls, self._optimizers) if line not in traced.remarks]
        if replicator.num_replicas > 1:
          refusals.refuse_global_batch_sizes(tf.compat.v1.get_default_graph())
        if is_compiled or replicator.is_async:
          refusals.refuse_summaries(tf.compat.v1.get_default_graph(), replicator.name)
        # A returned variable is read here, on the replica that owns the copy.
        ended.append(self._logged(traced, batch, outputs) if self._logs else tree.map_structure(
            lambda x: tf.identity(x) if isinstance(x, tf.Variable) else x, outputs))
        return ended[-1]

    if self._compiles_whole:  # XLA cannot compile `tf.distribute`; one replica does not need it.
      outputs = [on_replica(step, *batch)]
      traced.division = replicas[0].division
      return outputs
    try:
      outputs = replicator.strategy.run(on_replica, args=(step, *batch))
    except Exception:  # If replicas made different calls, this check gives the clearer error.
      agreement.check_replicas(replicas)
      raise
    agreement.check_replicas(replicas)
    graphs.adapt_optimizations(tf.compat.v1.get_default_graph())
    replicator.calls_traced = replicas[0].collectives
    traced.division = replicas[0].division
    return replicator.local_results(outputs)

  def _logged(self, traced: _Traced, batch: tuple, outputs: Any) -> tuple[tf.Tensor, dict]:
    """Packs the scalars of a step into one vector, which takes one collective to average."""
    found = scalars.checked(outputs)
    for hook in self._hooks:
      found = {**found, **hook.scalars(found)}
    traced.scalars.clear()  # Each replica is traced.
    traced.scalars.update({name: scalars.is_counter(value) for name, value in found.items()})
    more = {number: hook.ended(batch, outputs) for number, hook in enumerate(self._hooks)}
    return scalars.stacked(found), {number: values for number, values in more.items() if values}
