"""The cost of a step: its seconds on one replica, and the bytes that each of two replicas sends."""

import contextlib
import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

from replicator.step import context
from replicator.step.hooks import Hook, Transfer
from replicator.step.optimizers.optimizer import Optimizer
from replicator.step.variables import held_by
from replicator.strategies.compiled_step import CompiledStep
from replicator.training.inputs.pipeline import stream
from replicator.training.prepared import run_until_prepared
from replicator.training.run import Run

import keras
import tensorflow as tf

_WARM_UP = 3  # Calls that are not timed: they trace, compile, and fill memory and caches.


@dataclasses.dataclass
class StepCost:
  """The measured cost of a step; the batch is the global one."""

  batch_size: int
  transfers: list[Transfer]  # One replica's part.
  seconds: float = 0.0  # The median of a step, without its inputs and `before_call`, if timed.
  weights: int = 0  # The bytes of the weights that optimizers own; their gradients have as many.
  state: int = 0  # The bytes of all of the optimizers' slots and averages.


def record(main: Callable[[str], None], calls: int) -> StepCost:
  """Measures the cost of a configured experiment's step; with 0 `calls`, only traces it."""
  keras.backend.clear_session()
  return run_until_prepared(main, functools.partial(_cost_of, calls))


class TransferCount(Hook):
  """A hook that collects the transfers of a replica in `found`."""

  def transferred(self, transfer: Transfer) -> None:
    context.current().kept.setdefault(self, []).append(transfer)

  def ended(self, batch: tuple, outputs: Any) -> dict[str, tf.Tensor]:
    self.found: list[Transfer] = context.current().kept.get(self, [])
    return {}


def _bytes(variables: Iterable[keras.Variable]) -> int:
  return sum(v.value.shape.num_elements() * v.value.dtype.size for v in variables)


def _cost_of(calls: int, run: Run) -> StepCost:
  steps, transfers = run.schedule.steps_per_call, TransferCount()
  compiled = CompiledStep(run.replicator, run.module, steps, logs=True, hooks=[transfers])
  with contextlib.closing(stream(run.inputs, run.input_context, 0, steps)) as batches:
    batch = next(batches)
  compiled.trace(batch)
  cost = StepCost(run.input_context.global_batch_size, list(transfers.found))
  for _, optimizer in held_by(run.module, (Optimizer,)):
    cost.weights += _bytes(optimizer.variables_updated)
    cost.state += _bytes([*optimizer.keras_optimizer.variables, *optimizer.averages])
  seconds = []
  for call in range(_WARM_UP + calls if calls else 0):
    if run.before_call:
      with context.before_step(call * steps):
        run.before_call(run.module, call * steps)
    started = time.perf_counter()
    compiled(call * steps, batch).fetch()
    seconds.append((time.perf_counter() - started) / steps)
  if seconds:
    cost.seconds = statistics.median(seconds[_WARM_UP:])
  return cost
