"""Decides whether XLA compiles a step, and explains why it cannot."""

import re
from collections.abc import Callable
from typing import Any, TypeVar

from replicator.errors import UsageError, first_line
from replicator.strategies.tracing.graphs import operations, place

import tensorflow as tf

T = TypeVar("T")

_REASONS = {"parameter_server": "it is for synchronous replicas",
            "tpu": "a TPU always compiles the step"}


def checked(jit_compile: bool | None, strategy: str, devices_per_replica: int) -> bool:
  """Returns whether XLA may compile a step.

  Raises a UsageError if `jit_compile` is True, but XLA cannot compile the step.
  """
  why = (f"does not work with '{strategy}': {_REASONS[strategy]}" if strategy in _REASONS else
         f"XLA compiles for one device, not for devices_per_replica = {devices_per_replica}"
         if devices_per_replica != 1 else "")
  if jit_compile and why:
    raise UsageError(f"Replicator.jit_compile = True: {why}; change one of the two")
  return jit_compile is not False and not why


def uses_gpus(strategy: tf.distribute.Strategy) -> bool:
  """Returns whether replicas run on GPUs."""
  if not tf.distribute.has_strategy() and strategy is tf.distribute.get_strategy():
    return bool(tf.config.list_logical_devices("GPU"))  # TensorFlow uses a GPU if there is one.
  return any("GPU" in device for device in strategy.extended.worker_devices)


def with_or_without(replicator: Any, run: Callable[[], T], drop: Callable[[Exception], None]) -> T:
  """Calls `run`; if XLA is only the default and cannot compile it, calls `drop` and runs without.

  XLA compiles everything before it runs anything, so no variable has changed. A UsageError means
  that the step does something that is not allowed under XLA.
  """
  try:
    return run()
  except (tf.errors.OpError, UsageError) as error:
    of_xla = isinstance(error, UsageError) or "XLA_" in str(error)
    if not (replicator.may_drop_xla and of_xla):
      raise
    drop(error)
    replicator.jit_compile = replicator.may_drop_xla = False
    return run()


def line(error: Exception, step: Any) -> str:
  """Describes why XLA cannot compile a `CompiledStep`, with the operations the error names."""
  kinds, why = dict.fromkeys(re.findall(r"(\w+) \(No registered", str(error))), first_line(error)
  if kinds and not isinstance(error, UsageError):
    places = {operation.type: place(operation.traceback) for operation in operations(step.graph)}
    why = ", ".join(f"{kind}{places.get(kind, '')}" for kind in kinds)
  return f"the step runs without XLA, which cannot compile it: {why}"
