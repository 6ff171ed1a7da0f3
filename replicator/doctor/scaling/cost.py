"""The cost of a step: its seconds on one replica, and the bytes that each of two replicas sends."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from replicator.console import quiet

quiet.import_tensorflow()

import keras
import numpy as np
import tree

from replicator.app import config
from replicator.doctor.experiment import bound, configure, run_until_prepared
from replicator.errors import UsageError
from replicator.step import context
from replicator.step.context import Transfer
from replicator.strategies import strategy
from replicator.training import inputs
from replicator.training.observer import Observer, Training
from replicator.training.training_function import TrainingFunction

_WARM_UP = 3  # Calls that are not timed: they trace, compile, and fill memory and caches.


@dataclasses.dataclass
class StepCost:
  """The measured cost of a step; the batch is the global one."""

  batch_size: int
  transfers: list[Transfer]  # One replica's part; none on one replica.
  seconds: float = 0.0  # The median of a step; without its inputs and `before_call`.
  cpu_seconds: float = 0.0  # All cores together.


def of_one_replica(main: Callable[[str], None], files: Sequence[str], params: Sequence[str],
                   calls: int) -> StepCost:
  """Times `calls` calls of an experiment's step on one replica, on a GPU if there is one."""
  config.parse(files, params)
  devices = bound("Replicator.devices_per_replica", 1)
  strategy.make("mirrored", 2 * devices, None, devices)  # Later, the CPU could not be divided.
  return _record(main, files, params, ["Replicator.strategy = 'one_device'"], calls)


def of_two_replicas(main: Callable[[str], None], files: Sequence[str], params: Sequence[str],
                    batch_size: int) -> StepCost:
  """Counts what a replica with `batch_size` examples sends, while the step is traced.

  Call `of_one_replica` first. Raises a UsageError if the replica sends nothing.
  """
  config.parse(files, params)
  devices = 2 * bound("Replicator.devices_per_replica", 1)
  cost = _record(main, files, params, [
      "Replicator.strategy = 'mirrored'", f"Replicator.logical_cpus = {devices}",
      "Replicator.jit_compile = False", f"train.global_batch_size = {2 * batch_size}"])
  if not cost.transfers:
    raise UsageError("the step makes no collective: each replica would train by itself; make its "
                     "optimizers with replicator.wrap_optimizer")
  return cost


def _record(main: Callable[[str], None], files: Sequence[str], params: Sequence[str],
            bindings: list[str], calls: int = 0) -> StepCost:
  """The cost of the step that an experiment trains with these `bindings`; with no calls, traced."""
  configure(files, params, bound("train.steps_per_call", 1), *bindings)
  keras.backend.clear_session()
  return record(main, calls)


def record(main: Callable[[str], None], calls: int) -> StepCost:
  """The cost of the step that an experiment, already configured, trains.

  Raises a UsageError as `run_until_prepared` does.
  """
  recorder = _Recorder(calls)
  run_until_prepared(main, recorder)
  return recorder.cost


class _Recorder(Observer):
  """Runs the steps of a prepared training itself, and stops the training before its loop."""

  cost: StepCost

  def __init__(self, calls: int):
    self._calls = calls
    self._steps_per_call = bound("train.steps_per_call", 1)

  def run_step(self, step: Callable, *batch: Any) -> Any:
    outputs = step(*batch)
    self._transfers = list(context.current().transfers)
    return outputs

  def prepared(self, training: Training) -> None:
    function = TrainingFunction(training.replicator, training.step, self._steps_per_call,
                                observer=self)
    batch = None
    if training.inputs is not None:
      batch = next(iter(inputs.batches(training.inputs, training.input_context)))
      if self._steps_per_call > 1:
        batch = tree.map_structure(lambda x: np.stack([x] * self._steps_per_call), batch)
    function.trace(batch)
    self.cost = StepCost(training.input_context.global_batch_size, self._transfers)
    if self._calls:
      times = [self._timed(training, function, batch, call)
               for call in range(_WARM_UP + self._calls)][_WARM_UP:]
      self.cost.seconds, self.cost.cpu_seconds = (
          statistics.median(column) for column in zip(*times, strict=True))
    self.stop()

  def _timed(self, training: Training, function: TrainingFunction, batch: Any, call: int
             ) -> tuple[float, float]:
    """Seconds and CPU seconds of one of the steps of a call."""
    first_step = call * self._steps_per_call
    if training.before_call:
      training.before_call(training.step, first_step)
    started, used = time.perf_counter(), time.process_time()
    function(first_step, batch).fetch()
    return ((time.perf_counter() - started) / self._steps_per_call,
            (time.process_time() - used) / self._steps_per_call)
