"""Several training steps in one compiled call."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tree

from replicator.divergence.signals import Signals
from replicator.step import collectives
from replicator.strategies.replicator import Nest, Replicator, Step
from replicator.training.observer import Observer
from replicator.training.scalars import checked_scalars


class TrainingFunction:
  """Compiles `steps_per_call` calls of a step on all replicas into one.

  With `signals`, it adds the scalars of `replicator.divergence.signals` to those of the step.
  """

  def __init__(self, replicator: Replicator, step_fn: Step, steps_per_call: int,
               signals: bool = False, observer: Observer | None = None):
    self._replicator = replicator
    self._step_fn = step_fn
    self._observer = observer or Observer()
    self._steps_per_call = steps_per_call
    self._signals = Signals(step_fn) if signals else None
    self._names: list[str] = []
    self._function = replicator.compile(self._steps)
    self._arguments: tuple = ()

  def __call__(self, first_step: int, inputs: Nest | None, stop: bool = False) -> "Result":
    """Starts the steps `first_step`, `first_step + 1`, ...; with `stop`, asks all workers to stop.

    `inputs` is this worker's part of the batches, a nest of `[steps_per_call, n, ...]`, or None.
    """
    if not self._arguments and self._replicator.num_pipelines > 1 and (
        not tf.config.functions_run_eagerly()):
      self.trace(inputs)
    distributed = () if inputs is None else (self._replicator.distribute(inputs, axis=1),)
    arguments = (tf.constant(first_step, tf.int64), tf.constant(stop), distributed)
    self._arguments = self._arguments or arguments
    return Result(self._names, self._replicator.start(self._function, *arguments))

  def trace(self, inputs: Nest | None) -> list[str]:
    """Traces the steps for batches like `inputs`; returns the names of their scalars.

    Raises a UsageError if workers would call other collectives, so that a step would hang.
    """
    distributed = () if inputs is None else (self._replicator.distribute(inputs, axis=1),)
    self._arguments = (tf.constant(0, tf.int64), tf.constant(False), distributed)
    self._function.get_concrete_function(*self._arguments)
    if self._replicator.num_pipelines > 1:
      self._replicator.check_workers_agree()
    return list(self._names)

  def variables(self) -> list[tf.Variable]:
    """The variables that the steps use; valid after the first call."""
    used = self._function.get_concrete_function(*self._arguments).graph.variables
    servers = self._replicator.servers
    return [v for v in used if not (servers and v.handle is servers.updates.handle)]

  def _steps(self, first_step: tf.Tensor, stop: tf.Tensor, arguments: tuple) -> tf.Tensor:
    """Returns `[steps_per_call, 1 + number of scalars]`; column 0 is the request to stop."""
    floatx = keras.config.floatx()
    if self._steps_per_call == 1:
      history = self._one_step(first_step, 0, arguments)[tf.newaxis]
    else:
      history = tf.while_loop(
          lambda i, _: i < self._steps_per_call,
          lambda i, history: (i + 1, history.write(
              i, self._one_step(first_step + tf.cast(i, tf.int64), i, arguments))),
          [0, tf.TensorArray(floatx, self._steps_per_call)])[1].stack()
    history = tf.concat([tf.fill([self._steps_per_call, 1], tf.cast(stop, floatx)), history], 1)
    if self._replicator.num_pipelines > 1:
      history = self._replicator.local_results(
          self._replicator.strategy.run(collectives.all_mean, args=(history,)))[0]
    return history

  def _one_step(self, step: tf.Tensor, i: tf.Tensor | int, arguments: tuple) -> tf.Tensor:
    """The scalars of the i-th step of this call, averaged over this process's replicas."""
    def scalars(*stacked):
      batch = tree.map_structure(lambda x: x[i], stacked)
      run = lambda: checked_scalars(self._observer.run_step(self._step_fn, *batch))
      outputs = self._signals.added_to(run) if self._signals else run()
      self._names[:] = list(outputs)
      # One vector: one tensor to carry, and one collective to average.
      return tf.stack([tf.cast(value, keras.config.floatx()) for value in outputs.values()])
    replicator = self._replicator

    def means() -> tf.Tensor:
      local = replicator.local_results(replicator.on_replicas(scalars, step, arguments))
      return tf.add_n(local) / len(local)

    if not replicator.servers:
      return means()
    values, staleness = replicator.servers.measured(means)
    self._names.append("staleness")
    return tf.concat([values, [tf.cast(staleness, values.dtype)]], 0)


class Result:
  """The scalars of one call of a `TrainingFunction`, which may still be being computed."""

  def __init__(self, names: list[str], history: Any):
    self._names = names
    self._history = history

  def fetch(self) -> tuple[dict[str, np.ndarray], bool]:
    """Waits for the call, and returns its scalars and whether any worker asked to stop.

    The scalars are `{name: [steps_per_call]}`, averaged over replicas.
    """
    history = self._history
    values = history.fetch() if hasattr(history, "fetch") else history.numpy()
    return dict(zip(self._names, values.T[1:], strict=True)), bool(values[0, 0] > 0)
