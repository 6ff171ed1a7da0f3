"""Several training steps in one compiled call."""

import dataclasses
import functools
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tree

from replicator.collectives import collectives
from replicator.divergence.diagnostics import Signals
from replicator.errors import UsageError
from replicator.optimizers.optimizer import Optimizer
from replicator.step.variables import held_by
from replicator.strategies.replicator import Nest, Replicator, Step
from replicator.tracing import graphs, python_state
from replicator.tracing.trainable import ByTrainable
from replicator.training import observer
from replicator.workdir.reader import TIMES


@dataclasses.dataclass
class _Compiled:
  """The steps, compiled for what is `trainable` in the step."""

  function: Any  # A tf.function.
  # The step's scalars, and which are counters; known when the function is traced, as the next.
  scalars: dict[str, bool]
  remarks: list[str]  # On what the step does in Python.
  optimizers: dict[str, Optimizer]  # The step's, by path.
  arguments: tuple  # What it was first called with.
  jit_compile: bool

  @functools.cached_property
  def graph(self) -> tf.Graph:
    return self.trace().graph

  def trace(self) -> Any:
    """Traces the function, if that is not done; returns the concrete function."""
    return self.function.get_concrete_function(*self.arguments)

  @functools.cached_property
  def warnings(self) -> list[str]:
    """Lines about what is in the graph, for the user."""
    lines = [f"warning: {call}: what its Python code keeps is in no checkpoint; compute with "
             "TensorFlow, and keep it in a tf.Variable that is an attribute of the step"
             for call in graphs.python_calls(self.graph)]
    lines += [f"warning: {remark}" for remark in self.remarks]
    lines += [f"warning: the step does not apply its optimizer '{path}', so the "
              f"{len(optimizer.variables_updated)} variables that it owns do not train; call its "
              "minimize or apply, or leave it out" for path, optimizer in self.optimizers.items()
              if not any(True for _ in graphs.assignments(
                  self.graph, optimizer.keras_optimizer.iterations.value))]
    if not self.jit_compile:
      lines += [f"warning: {name}: on CPUs its gradient may be wrong or end the process, a fault "
                "of oneDNN's with a stride and fewer than 16 input channels; pass it every second "
                "pixel, x[:, ::2, ::2] for strides=2, and use strides=1"
                for name in graphs.unsafe_convolutions(self.graph)]
    return lines


class TrainingFunction:
  """Compiles `steps_per_call` calls of a step on all replicas into one.

  It is compiled again when another part of the step is `trainable`. With `signals`, it adds the
  scalars of `replicator.divergence.diagnostics` to those of the step.
  """

  def __init__(self, replicator: Replicator, step_fn: Step, steps_per_call: int,
               signals: bool = False):
    self._replicator = replicator
    self._step_fn = step_fn
    self._steps_per_call = steps_per_call
    self._signals = Signals(step_fn) if signals else None
    self._optimizers = dict(held_by(step_fn, (Optimizer,)))
    self._compiled = ByTrainable(step_fn, self._compile)
    self._warned: set[str] = set()

  def __call__(self, first_step: int, inputs: Nest | None, stop: bool = False) -> "RunningCall":
    """Starts the steps `first_step`, `first_step + 1`, ...; with `stop`, asks all workers to stop.

    `inputs` is this worker's part of the batch, a nest of `[n, ...]`, or of the batches of several
    steps, `[steps_per_call, n, ...]`; or None.
    """
    arguments = self._arguments(first_step, inputs, stop)
    self._newest: _Compiled = self._compiled.get(arguments)
    history = self._replicator.start(self._newest.function, *arguments)
    return RunningCall(self._newest.scalars, history)

  def trace(self, inputs: Nest | None) -> list[str]:
    """Traces the steps for batches like `inputs`; returns the names of their scalars.

    Raises a UsageError if workers would call other collectives, so that a step would hang.
    """
    self._newest = self._compiled.get(self._arguments(0, inputs, False))
    self._newest.trace()
    return list(self._newest.scalars)

  def variables(self) -> list[tf.Variable]:
    """The variables that the steps use; valid after the first call."""
    servers = self._replicator.servers
    return [v for v in self._newest.graph.variables
            if not (servers and v.handle is servers.updates.handle)]

  def assigned_at(self, variable: tf.Variable) -> str:
    """` at file:line`, where the steps assign a variable, if that can be had; after a call."""
    return next(graphs.assignments(self._newest.graph, variable), "")

  def warnings(self) -> list[str]:
    """Lines about what the newest trace found, each thing once."""
    if tf.config.functions_run_eagerly():
      return []
    new = [line for line in self._newest.warnings if line not in self._warned]
    self._warned.update(new)
    return new

  def _arguments(self, first_step: int, inputs: Nest | None, stop: bool) -> tuple:
    axis = 0 if self._steps_per_call == 1 else 1
    distributed = () if inputs is None else (self._replicator.distribute(inputs, axis),)
    return tf.constant(first_step, tf.int64), tf.constant(stop), distributed

  def _compile(self, arguments: tuple) -> _Compiled:
    """Compiles the steps for arguments like these, and for what is `trainable` now."""
    scalars: dict[str, bool] = {}
    remarks: list[str] = []
    # TensorFlow does not find the lines of a lambda for its errors.
    def steps(*arguments) -> tf.Tensor:
      with (python_state.sums_noted_in(remarks, self._step_fn),
            python_state.draws_noted_in(remarks, self._step_fn)):
        return self._steps(scalars, *arguments)

    compiled = _Compiled(self._replicator.compile(steps), scalars, remarks, self._optimizers,
                         arguments, self._replicator.jit_compile)
    if self._replicator.num_pipelines > 1 and not tf.config.functions_run_eagerly():
      compiled.trace()
      self._replicator.check_workers_agree()
    return compiled

  def _steps(self, scalars: dict[str, bool], first_step: tf.Tensor, stop: tf.Tensor,
             arguments: tuple) -> tf.Tensor:
    """Returns `[steps_per_call, 1 + number of scalars]`; column 0 is the request to stop.

    The names of the scalars, and whether each is a counter, are left in `scalars`.
    """
    floatx = keras.config.floatx()
    if self._steps_per_call == 1:
      history = self._one_step(scalars, first_step, arguments)[tf.newaxis]
    else:
      history = tf.while_loop(
          lambda i, _: i < self._steps_per_call,
          lambda i, history: (i + 1, history.write(
              i, self._one_step(scalars, first_step + tf.cast(i, tf.int64), arguments, i))),
          [0, tf.TensorArray(floatx, self._steps_per_call)])[1].stack()
    history = tf.concat([tf.fill([self._steps_per_call, 1], tf.cast(stop, floatx)), history], 1)
    if self._replicator.num_pipelines > 1:
      history = self._replicator.local_results(
          self._replicator.strategy.run(collectives.all_mean, args=(history,)))[0]
    return history

  def _one_step(self, scalars: dict[str, bool], step: tf.Tensor, arguments: tuple,
                i: tf.Tensor | None = None) -> tf.Tensor:
    """The scalars of a step, the i-th of several, averaged over this process's replicas."""
    def run_step(*batch):
      if i is not None:
        batch = tree.map_structure(lambda x: tf.gather(x, i), batch)
      run = lambda: checked_scalars(observer.current().run_step(self._step_fn, *batch))
      outputs = self._signals.added_to(run) if self._signals else run()
      scalars.clear()  # Each replica is traced.
      scalars.update({name: isinstance(value, tf.Variable) or (
          tf.convert_to_tensor(value).dtype.is_unsigned) for name, value in outputs.items()})
      # One vector: one tensor to carry, and one collective to average.
      return tf.stack([tf.cast(value, keras.config.floatx()) for value in outputs.values()])
    replicator = self._replicator

    def means() -> tf.Tensor:
      local = replicator.local_results(replicator.on_replicas(run_step, step, arguments))
      return tf.add_n(local) / len(local)

    if not replicator.servers:
      return means()
    values, staleness = replicator.servers.measured(means)
    scalars["staleness"] = False
    return tf.concat([values, [tf.cast(staleness, values.dtype)]], 0)


class RunningCall:
  """The scalars of one call of a `TrainingFunction`, which may still be being computed."""

  def __init__(self, scalars: dict[str, bool], history: Any):
    self._scalars = scalars
    self._history = history

  @property
  def counters(self) -> list[str]:
    """The names of the scalars that are variables or unsigned integers, after `fetch`."""
    return [name for name, is_counter in self._scalars.items() if is_counter]

  def fetch(self) -> tuple[dict[str, np.ndarray], bool]:
    """Waits for the call, and returns its scalars and whether any worker asked to stop.

    The scalars are `{name: [steps_per_call]}`, averaged over replicas.
    """
    history = self._history
    values = history.fetch() if hasattr(history, "fetch") else history.numpy()
    return dict(zip(self._scalars, values.T[1:], strict=True)), bool(values[0, 0] > 0)


def checked_scalars(outputs: Any) -> dict[str, tf.Tensor]:
  """Returns the outputs of a step; raises a UsageError unless they are scalars to log."""
  if not isinstance(outputs, dict) or not outputs:
    raise UsageError("the step must return a non-empty dict of scalars to log, such as "
                     f"{{'loss': loss}}, not {type(outputs).__name__}")
  for name, value in outputs.items():
    if not isinstance(name, str) or name.startswith("eval/"):
      raise UsageError(f"the step returned a scalar with the name {name!r}; write a string, which "
                       "does not begin with 'eval/', as those of evaluations do")
    if name in ("step", "staleness", *TIMES):
      raise UsageError(f"the step returned '{name}', which is a column of the log already; call it "
                       "something else")
    try:
      value = tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
      raise UsageError(f"the step returned '{name}', a {type(value).__name__}; return a scalar of "
                       "numbers") from error
    if value.shape.rank != 0:
      raise UsageError(f"the step returned '{name}' of shape {value.shape}; return a scalar, "
                       "such as its tf.reduce_mean over the replica's examples")
    if not (value.dtype.is_floating or value.dtype.is_integer or value.dtype.is_bool):
      raise UsageError(f"the step returned '{name}', which is {value.dtype.name}; return a scalar "
                       "of numbers")
  return outputs
