"""Checks that a step trains the same on one replica and on many, by comparing variants of it."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from replicator.app import config
from replicator.console.error_line import in_one_line
from replicator.doctor import replica_recording
from replicator.doctor.experiment import bound, configure, recorded_by
from replicator.doctor.replica_recording import ReplicaRecording
from replicator.doctor.verdict import AGREES, DIFFERS, FAILED, SKIPPED, CheckResult
from replicator.errors import UsageError, first_line
from replicator.strategies import strategy
from replicator.strategies.replicator import Replicator, replaced
from replicator.training.checks import diagnosis

import numpy as np


@dataclasses.dataclass
class ReplicaCheck:
  """A comparison of variants of an experiment with one replica."""

  main: Callable[[str], None]
  files: Sequence[str]
  params: Sequence[str]
  steps: int = 5
  precision: str = "float64"

  @property
  def tolerance(self) -> float:
    """The largest relative difference that counts as rounding."""
    return diagnosis.TOLERANCES[self.precision]

  def prepare(self) -> None:
    """Splits the CPU, and records one replica."""
    config.parse(self.files, self.params)
    self._devices = bound("Replicator.devices_per_replica", 1)
    strategy.make("mirrored", 4 * self._devices, None, self._devices)
    self.reference = self._record(1)
    for (step, kind, name), value in self.reference.quantities.items():
      if kind == diagnosis.GRADIENT and not np.isfinite(value).all():
        raise UsageError(f"on one replica, a gradient of step {step} is not finite ({name}), and "
                         "equal NaNs prove nothing; fix the step first")

  def record_process(self) -> ReplicaRecording:
    """Records this process's part in a cluster."""
    return self._record_with(strategy="multi_worker_mirrored", cluster="tf_config",
                             logical_cpus=None)

  def results(self, words: Sequence[str]) -> Iterator[CheckResult]:
    """Yields each row as soon as it is known; the 2 processes get the command line `words`."""
    for replicas in (2, 4):
      yield self._result(f"{replicas} replicas", replicas,
                         functools.partial(self._record, replicas))
    yield self._microbatch_result()
    if self._devices > 1:
      yield CheckResult("2 processes", SKIPPED,
                        "Replicator.devices_per_replica works only in one process")
    else:
      yield self._result("2 processes", 2, lambda: recorded_by(words, workers=2))

  def _record(self, replicas: int, microbatches: int = 1) -> ReplicaRecording:
    name = "one_device" if replicas == 1 else "mirrored"
    return self._record_with(microbatches, strategy=name, logical_cpus=replicas * self._devices)

  def _record_with(self, microbatches: int = 1, **strategy: Any) -> ReplicaRecording:
    configure(self.files, self.params, self.steps, "train.steps_per_call = 1",
              f"train.precision = '{self.precision}'", f"microbatch.n = {microbatches}")
    with replaced(**strategy):
      Replicator()  # Before the program may start TensorFlow, after which no cluster can start.
      return replica_recording.record(self.main, self.steps, self.precision)

  def _microbatch_result(self) -> CheckResult:
    name = "2 micro-batches"
    if not self.reference.evidence.microbatched:
      return CheckResult(name, SKIPPED, "the step does not call replicator.microbatch")
    if not self.reference.evidence.has_global_batch_norm:
      return self._result(name, 2, functools.partial(self._record, 1, 2), microbatches=True)
    # Statistics per micro-batch train differently from those of the full batch.
    result = self._result(name, 2, functools.partial(self._record, 2, 2),
                          lambda: self._record(1, 2))
    note = ("compared on 2 replicas with 2 micro-batches on 1: GlobalBatchNorm computes "
            "its statistics per micro-batch")
    return dataclasses.replace(result, notes=(note, *result.notes))

  def _result(self, name: str, parts: int, record: Callable[[], ReplicaRecording],
              make_reference: Callable[[], ReplicaRecording] | None = None,
              microbatches: bool = False) -> CheckResult:
    try:
      reference = make_reference() if make_reference else self.reference
      other = record().quantities
    except Exception as error:
      return self._failure(name, error)
    largest, first = diagnosis.compare(reference.quantities, other, self.tolerance)
    step, kind, _ = largest.key
    detail = f"{largest.relative:.1e}  (a {kind} at step {step})"
    if first is None:
      return CheckResult(name, AGREES, detail)
    case = diagnosis.Case(reference.quantities, reference.evidence, other, first, parts,
                          microbatches, self.tolerance)
    cause = case.cause() if first.key[0] == 0 else self._unsteady(first.key[1]) or case.cause()
    agreeing = diagnosis.agreeing(reference.quantities, other, self.tolerance)
    return CheckResult(name, DIFFERS, detail, (
        f"first: {case.place()}", f"likely cause: {cause}",
        *([f"still agree: all {' and all '.join(agreeing)}"] if agreeing else [])))

  def _failure(self, name: str, error: Exception) -> CheckResult:
    if "does not divide" in str(error):
      return CheckResult(name, SKIPPED, first_line(error))
    reason = first_line(error) if isinstance(error, UsageError) else in_one_line(error)
    # A Keras draw makes a variable for its state; TensorFlow reports that at a different place.
    draws = [draw for draw in self.reference.evidence.draws
             if reason.startswith(draw.rpartition(" at ")[2] + ": ")
             or ("keras.random makes" in reason and draw.startswith("a keras.random"))]
    return CheckResult(name, FAILED, reason, tuple(
        f"likely cause: {draw}; draw with replicator.random" for draw in draws))

  def _unsteady(self, kind: str) -> str:
    """Returns the cause of a first `kind` difference if even one replica is not reproducible."""
    if self._differs_again is None:
      return ""
    if kind != diagnosis.BATCH:
      return ("the step is not deterministic: two runs on one replica differ as well; draw random "
              "numbers with replicator.random, and weights with Keras initializers")
    return "" if self._differs_again.key[1] != kind else (
        "the input is not deterministic: two runs on one replica differ as well; seed its shuffles "
        "with context.seed")

  @functools.cached_property
  def _differs_again(self) -> diagnosis.Deviation | None:
    """The first difference between two runs on one replica; computed only if something differs."""
    return diagnosis.compare(self.reference.quantities, self._record(1).quantities,
                             self.tolerance)[1]
