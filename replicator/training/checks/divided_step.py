"""The first step of a run, divided as the run divides it, against the same step in one piece.

A run on several replicas, or in micro-batches, must train as one device does. Before its first step
it computes a step on a few examples twice: divided, and by every replica alone, which then has the
examples of all. Both start from the state of the run, which is put back bit for bit.
"""

from typing import Any

from replicator.console.error_line import line_of
from replicator.step import context
from replicator.step.nest import Nest
from replicator.step.replicated import copies_of
from replicator.strategies.compiled_step import CompiledStep
from replicator.training.checks import diagnosis
from replicator.training.checks.step_recorder import StepRecorder
from replicator.training.checks.undone import undone, written_by
from replicator.training.run import Run

import keras
import numpy as np
import tensorflow as tf
import tree

FEW = 4
"""The examples of the smallest parts into which a step divides its batch."""


def compare_with_one_device(run: Run, compiled: CompiledStep, batch: Nest | None) -> None:
  """Says whether the first step of a run is as on one device, and warns if it is not.

  A run on one device that does not use micro-batches says nothing. All workers must call it.

  Args:
    compiled: the step, traced for `batch`.
    batch: this worker's part of a global batch; None for a step that makes its own examples.
  """
  replicator, division = run.replicator, compiled.division
  if replicator.name in ("parameter_server", "tpu") or not (
      replicator.num_replicas > 1 or division.is_microbatched):
    return
  comparison = _Comparison(run, division)
  if not comparison.is_of_use:
    return
  run.doing("comparing the first step with one device")
  try:
    comparison.make(batch)
  except Exception as error:
    if run.replicator.num_pipelines > 1 and isinstance(error, tf.errors.OpError):
      raise  # Another worker may be lost.
    run.say(f"first step: not compared with one device ({line_of(error)})")
  else:
    comparison.tell()


class _Comparison:
  """Computes a step divided and in one piece."""

  def __init__(self, run: Run, division: context.Division):
    self._run, self._replicas = run, run.replicator.num_replicas
    self._divided, self._whole = StepRecorder(run.module), StepRecorder(run.module)
    size = context.run.global_batch_size // self._replicas
    self._pieces = size // (division.smallest or size)
    self._few = min(size, FEW * self._pieces)
    # Batch norm takes its statistics by micro-batch, so that one piece is another training.
    self._joins_microbatches = division.is_microbatched and (
        not self._whole.recording.evidence.has_global_batch_norm)

  @property
  def is_of_use(self) -> bool:
    """Whether one piece is something else than what the run computes."""
    return self._replicas > 1 or self._joins_microbatches

  def make(self, batch: Nest | None) -> None:
    """Computes both; raises what the step raises, which may not run on a few examples."""
    run, size = self._run, context.run.global_batch_size
    few = None if batch is None else self._few_of(batch)
    context.run.global_batch_size = self._few * self._replicas
    try:
      divided = CompiledStep(run.replicator, run.module, logs=True, hooks=[self._divided],
                             xla=False)
      whole = CompiledStep(run.replicator, run.module, logs=True, hooks=[self._whole], xla=False,
                           as_one=self._replicas > 1, in_one_piece=self._joins_microbatches)
      for step in (divided, whole):
        step.trace(few)
      written = {id(copy) for step in (divided, whole) for copy in written_by(step)}
      for recorder, step in ((self._divided, divided), (self._whole, whole)):
        with undone(step):
          _record(recorder, step, few, written)
    finally:
      context.run.global_batch_size = size

  def _few_of(self, batch: Nest) -> Nest:
    """The first examples of each replica's part of this worker's batch."""
    local = self._run.replicator.num_local_replicas
    is_stacked = self._run.schedule.steps_per_call > 1

    def first(x: Any) -> np.ndarray:
      x = np.asarray(x)[0] if is_stacked else np.asarray(x)
      return np.concatenate([part[:self._few] for part in np.split(x, local)])

    return tree.map_structure(first, batch)

  def tell(self) -> None:
    """Says how far the two are apart."""
    run, reference = self._run, self._whole.recording
    tolerance = diagnosis.LOOSE[keras.config.dtype_policy().name]
    largest, first = diagnosis.compare(
        reference.quantities, self._divided.recording.quantities, tolerance)
    if first is None:
      run.say(f"first step: as on one device, {largest.relative:.0e}")
      return
    self._whole.look_for_suspects()
    parts = self._replicas if self._replicas > 1 else self._pieces
    case = diagnosis.Case(reference, self._divided.recording.quantities, first, parts,
                          self._replicas == 1, tolerance)
    run.warn(f"the first step is not as on one device: {case.place()}; likely cause: "
             f"{case.cause()}; `replicator doctor` shows more")


def _record(recorder: StepRecorder, step: CompiledStep, batch: Nest | None, written: set[int]
            ) -> None:
  """Records a step, and the variables that it writes before and after it."""
  quantities = recorder.recording.quantities
  recorder.variables = {path: v for path, v in recorder.variables.items()
                        if isinstance(v, tf.Variable) and _has_one_value(v)
                        and any(id(copy) in written for copy in copies_of(v))}
  quantities.update(recorder.read(0))
  step(0, batch).fetch()
  quantities.update(recorder.read(1))


def _has_one_value(variable: tf.Variable) -> bool:
  """Whether it is no sum of what replicas add, which is larger if each adds for all."""
  return variable.aggregation != tf.VariableAggregation.SUM
