"""Compares the first step of a run, divided over replicas, with the same step on one device.

A run on several replicas, or in micro-batches, must train like a run on one device. So before its
first step, it computes a step on a few examples twice: divided, and on a single replica that gets
all these examples. Both start from the state of the run, which is then restored bit for bit.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from replicator.console.error_line import line_of
from replicator.step import context, replicated
from replicator.step.nest import Nest
from replicator.step.optimizers.optimizer import Optimizer
from replicator.step.replicated import copies_of
from replicator.step.variables import held_by
from replicator.strategies.compiled_step import CompiledStep
from replicator.strategies.tracing import graphs
from replicator.training.checks import diagnosis
from replicator.training.checks.inspection import Inspector
from replicator.training.checks.step_recorder import StepRecorder
from replicator.training.checks.undone import undone, written_by
from replicator.training.run import Run

import keras
import numpy as np
import tensorflow as tf
import tree

FEW = 4
"""The number of examples in the smallest parts into which a step divides its batch."""
_LOSS_SCALE = 128.0
"""The loss scale for float16: a run's initial scale may be so high that all gradients overflow and
the update is skipped, and with 1 small gradients would vanish."""

_HALF = {"mixed_bfloat16": 0.4, "mixed_float16": 0.4}
"""The tolerance in half precision. A sum in place of a mean differs by 0.5 or more; rounding makes
the gradients of deep networks on few examples differ by up to 0.24."""


def compare_with_one_device(run: Run, compiled: CompiledStep, batch: Nest | None) -> None:
  """Reports whether the first step of a run is the same as on one device; warns if it is not.

  Does nothing for a run on one device without micro-batches. All workers must call it.

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
  run.doing("compiling the step")  # Done in the first call.


class _Comparison:
  """A comparison of a divided step with the same step in one piece."""

  def __init__(self, run: Run, division: context.Division):
    self._run, self._replicas = run, run.replicator.num_replicas
    self._divided, self._whole = StepRecorder(run.module), StepRecorder(run.module)
    self._inspector = Inspector(run.module)
    size = context.run.examples // self._replicas
    self._pieces = size // (division.smallest or size)
    precision = keras.config.dtype_policy().name
    # Gradients in float64 are sent as they are.
    self._is_half = precision in _HALF or (precision == "float32" and any(
        optimizer.communication.dtype for _, optimizer in held_by(run.module, (Optimizer,))))
    self._tolerance = (_HALF.get(precision, _HALF["mixed_bfloat16"]) if self._is_half else
                       diagnosis.LOOSE[precision])
    self._reference: diagnosis.Quantities | None = None  # Kept if it is also recorded perturbed.
    self._few = min(size, FEW * self._pieces)
    # Batch norm takes its statistics per micro-batch, so one piece would train differently.
    self._joins_microbatches = division.is_microbatched and (
        not self._inspector.evidence.has_global_batch_norm)

  @property
  def is_of_use(self) -> bool:
    """Whether one piece differs from what the run computes."""
    return self._replicas > 1 or self._joins_microbatches

  def make(self, batch: Nest | None) -> None:
    """Computes both; raises the step's errors, since it may not support so few examples."""
    run, size = self._run, context.run.global_batch_size
    few = None if batch is None else self._few_of(batch)
    context.run.global_batch_size = self._few * self._replicas // context.run.batches
    try:
      divided = CompiledStep(run.replicator, run.module, logs=True, hooks=[self._divided],
                             xla=False)
      whole = CompiledStep(run.replicator, run.module, logs=True,
                           hooks=[self._whole, self._inspector], xla=False,
                           as_one=self._replicas > 1, in_one_piece=self._joins_microbatches)
      for step in (divided, whole):
        step.trace(few)
      written = {id(copy) for step in (divided, whole) for copy in written_by(step)}
      with _losses_scaled(run.module), graphs.unoptimized():
        for recorder, step in ((self._divided, divided), (self._whole, whole)):
          with undone(step):
            _record(recorder, step, few, written, of_first=step is whole)
        if self._compared()[1] is not None and self._tolerance == diagnosis.LOOSE["float32"]:
          self._reference = dict(self._whole.quantities)
          with _perturbed(whole), undone(whole):
            _record(self._whole, whole, few, written, of_first=True)
    finally:
      context.run.global_batch_size = size

  def _few_of(self, batch: Nest) -> Nest:
    """Returns the first examples of each replica's part of this worker's batch."""
    local = self._run.replicator.num_local_replicas
    is_stacked = self._run.schedule.steps_per_call > 1

    def first(x: Any) -> np.ndarray:
      x = np.asarray(x)[0] if is_stacked else np.asarray(x)
      return np.concatenate([part[:self._few] for part in np.split(x, local)])

    return tree.map_structure(first, batch)

  def _compared(self) -> tuple[diagnosis.Deviation, diagnosis.Deviation | None]:
    """Returns the largest difference, and the first one that is too large."""
    perturbed = None if self._reference is None else self._whole.quantities
    reference, divided = self._reference or self._whole.quantities, self._divided.quantities
    if self._is_half:
      reference, divided = map(diagnosis.without_trained, (reference, divided))
    return diagnosis.compare(reference, divided, self._tolerance, perturbed)

  def tell(self) -> None:
    """Reports how much the two differ."""
    run = self._run
    largest, first = self._compared()
    if first is None:
      run.say("first step: same as on one device" + (
          f", {largest.relative:.0e}" if self._reference is None else
          f" up to rounding, which this step amplifies to {largest.relative:.0e}"))
      return
    self._inspector.look()
    parts = self._replicas if self._replicas > 1 else self._pieces
    case = diagnosis.Case(self._reference or self._whole.quantities, self._inspector.evidence,
                          self._divided.quantities, first, parts, self._replicas == 1,
                          self._tolerance)
    run.warn(f"the first step is not the same as on one device: {case.place()}; likely cause: "
             f"{case.cause()}; `replicator doctor` shows more")


@contextlib.contextmanager
def _perturbed(step: CompiledStep) -> Iterator[None]:
  """Perturbs the float32 variables of a step by rounding, up or down, in the body."""
  copies = [copy for v in step.variables() if v.dtype == tf.float32 for copy in copies_of(v)]
  values = [copy.numpy() for copy in copies]
  rng = np.random.default_rng(0)
  try:
    for copy, value in zip(copies, values, strict=True):
      signs = rng.choice([-1.0, 1.0], value.shape)
      copy.assign((value * (1.0 + signs * np.finfo(np.float32).eps)).astype(np.float32))
    yield
  finally:
    for copy, value in zip(copies, values, strict=True):
      copy.assign(value)


@contextlib.contextmanager
def _losses_scaled(module: Any) -> Iterator[None]:
  """Sets the loss scale of float16 to one that suits a comparison, in the body."""
  factors = [optimizer.loss_scale.factor for _, optimizer in held_by(module, (Optimizer,))
             if optimizer.loss_scale is not None]
  before = [replicated.read(factor) for factor in factors]
  try:
    for factor in factors:
      replicated.assign(factor, _LOSS_SCALE)
    yield
  finally:
    for factor, value in zip(factors, before, strict=True):
      replicated.assign(factor, value)


def _record(recorder: StepRecorder, step: CompiledStep, batch: Nest | None, written: set[int],
            of_first: bool) -> None:
  """Records a step, and the variables that it writes before and after it.

  With `of_first`, only the copies of this process's first replica are read.
  """
  recorder.variables = {path: v for path, v in recorder.variables.items()
                        if isinstance(v, tf.Variable) and _has_one_value(v)
                        and any(id(copy) in written for copy in copies_of(v))}
  recorder.quantities.update(recorder.read(0, of_first))
  step(0, batch).fetch()
  recorder.quantities.update(recorder.read(1, of_first))


def _has_one_value(variable: tf.Variable) -> bool:
  """Returns whether it is not a sum over replicas, which grows if each replica adds the total."""
  return variable.aggregation != tf.VariableAggregation.SUM
