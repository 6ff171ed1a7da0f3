"""Runs steps and restores everything they wrote, bit for bit."""

import contextlib
from collections.abc import Iterator
from typing import Any

from replicator.errors import UsageError
from replicator.step.replicated import copies_of
from replicator.strategies.compiled_step import CompiledStep
from replicator.strategies.tracing import graphs
from replicator.training.run import Run

import numpy as np
import tensorflow as tf

_SHORT = 2.0  # The most seconds that a step may take if only a check needs it.


def written_by(compiled: CompiledStep) -> list[tf.Variable]:
  """Returns the plain variables of this process that a traced step writes."""
  copies = {id(copy): copy for v in compiled.variables() for copy in copies_of(v)}
  written = {id(copy): copy for copy, _ in graphs.writes(compiled.graph, [*copies.values()])}
  return [*written.values()]


@contextlib.contextmanager
def undone(compiled: CompiledStep) -> Iterator[None]:
  """Restores, after the body, the variables that a traced step writes.

  Raises a UsageError if the step calls Python functions, whose effects cannot be undone.
  """
  if calls := graphs.python_calls(compiled.graph):
    raise UsageError(f"the step calls {calls[0]}, whose effects cannot be undone")
  variables = written_by(compiled)
  values = [variable.read_value().numpy() for variable in variables]
  try:
    yield
  finally:
    for variable, value in zip(variables, values, strict=True):
      variable.assign(value)


def next_step(run: Run, compiled: CompiledStep, batches: Iterator[Any]
              ) -> dict[str, np.ndarray] | None:
  """Returns the scalars of the next step of a run that stops here, without the step's effects.

  Returns None if the step takes long or cannot be undone, as with `before_call`. All workers must
  call it.
  """
  if not run.checks_first_step or run.before_call or run.replicator.is_async or (
      run.replicator.by_worker(run.call_seconds).max() > _SHORT):
    return None
  with contextlib.suppress(Exception), undone(compiled):
    return compiled(run.step, next(batches), True).fetch()[0]
  return None
