"""The cost of a step: its seconds on one replica, and the bytes that each of two replicas sends."""

import contextlib
import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from replicator.console import quiet

quiet.import_tensorflow()

import keras

from replicator.app import config
from replicator.doctor.experiment import bound, configure
from replicator.errors import UsageError
from replicator.inputs.inputs import stream
from replicator.step import context
from replicator.step.context import Transfer
from replicator.strategies import strategy
from replicator.training.observer import Training, run_until_prepared
from replicator.training.training_function import TrainingFunction

_WARM_UP = 3  # Calls that are not timed: they trace, compile, and fill memory and caches.


@dataclasses.dataclass
class StepCost:
  """The measured cost of a step; the batch is the global one."""

  batch_size: int
  transfers: list[Transfer]  # One replica's part.
  seconds: float = 0.0  # The median of a step, without its inputs and `before_call`, if timed.


def measure(main: Callable[[str], None], files: Sequence[str], params: Sequence[str], calls: int
            ) -> StepCost:
  """Times `calls` calls of an experiment's step on one replica, on a GPU if there is one.

  The transfers are those of one of two replicas with as many examples each. Raises a UsageError if
  there are none, and as `run_until_prepared` does.
  """
  config.parse(files, params)
  devices, steps = bound("Replicator.devices_per_replica", 1), bound("train.steps_per_call", 1)
  strategy.make("mirrored", 2 * devices, None, devices)  # Later, the CPU could not be divided.
  # Unbound, it is on a GPU, if there is one.
  is_split = bound("Replicator.logical_cpus", None)
  configure(files, params, steps, "Replicator.strategy = 'one_device'",
            *([f"Replicator.logical_cpus = {devices}"] if is_split else []))
  alone = record(main, calls)
  configure(files, params, steps, "Replicator.strategy = 'mirrored'",
            f"Replicator.logical_cpus = {2 * devices}", "Replicator.jit_compile = False",
            f"train.global_batch_size = {2 * alone.batch_size}")
  transfers = record(main, calls=0).transfers
  if not transfers:
    raise UsageError("the step makes no collective: each replica would train by itself; make its "
                     "optimizers with replicator.wrap_optimizer")
  return dataclasses.replace(alone, transfers=transfers)


def record(main: Callable[[str], None], calls: int) -> StepCost:
  """The cost of the step that an experiment, already configured, trains; with no calls, traced."""
  keras.backend.clear_session()
  return run_until_prepared(main, functools.partial(_cost_of, calls))


def _cost_of(calls: int, training: Training) -> StepCost:
  step, steps = training.step, bound("train.steps_per_call", 1)
  transfers: list[Transfer] = []

  def noted(*batch: Any) -> Any:
    outputs = step(*batch)
    transfers[:] = context.current().transfers
    return outputs

  function = TrainingFunction(training.replicator, noted, steps)
  with contextlib.closing(stream(training.inputs, training.input_context, 0, steps)) as batches:
    batch = next(batches)
  function.trace(batch)
  cost = StepCost(training.input_context.global_batch_size, list(transfers))
  seconds = []
  for call in range(_WARM_UP + calls if calls else 0):
    if training.before_call:
      with context.before_step(call * steps):
        training.before_call(step, call * steps)
    started = time.perf_counter()
    function(call * steps, batch).fetch()
    seconds.append((time.perf_counter() - started) / steps)
  if seconds:
    cost.seconds = statistics.median(seconds[_WARM_UP:])
  return cost
