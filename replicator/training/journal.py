"""Writes the files and the progress of a run, on the chief only."""

import contextlib
import math
from typing import Any

from replicator.atomic import disk_fault
from replicator.console.error_line import line_of
from replicator.console.status import Progress
from replicator.errors import Preempted, RunFailed, UsageError, chain_of
from replicator.training import from_step
from replicator.training.callbacks.calls import Calls
from replicator.training.checks.resumed_step import ResumedStep
from replicator.training.evaluation import Evaluation
from replicator.training.networks import layers_of
from replicator.training.run import Run
from replicator.training.throughput import Throughput
from replicator.training.workdir import reader, run_summary
from replicator.training.workdir.reader import EARLY
from replicator.training.workdir.record import Record
from replicator.training.workdir.sinks import LogFile, MetricsFile, SampleFiles, TensorBoard

import numpy as np
import tensorflow as tf


class Journal:
  """A context manager that writes the workdir of a run and shows its progress.

  `facts` go to `run.json`; `notes` are lines about how the run began.
  """

  def __init__(self, run: Run, facts: dict, notes: list[str]):
    self._run, self._schedule = run, run.schedule
    self._facts, self._notes = facts, notes
    self._waiting = self._training = 0.0  # The run's values at the last log point.
    self._throughput = Throughput(run)
    self._log: LogFile | None = None
    self._next: ResumedStep | None = None  # On the chief, if it compares its steps.
    self._without_result: list[str] = []  # The newest evaluation's scalars if all are NaN.

  def __enter__(self) -> "Journal":
    run = self._run
    self._stack = contextlib.ExitStack().__enter__()
    if run.is_chief:
      if run.went_back:
        fact, line = from_step.leave_behind(run)
        self._facts.update(fact)
        self._notes += [line] if line else []
      run.workdir.joinpath("samples").mkdir(parents=True, exist_ok=True)
      self._metrics, self._events = MetricsFile(run.workdir), TensorBoard(run.workdir)
      for sink in (self._metrics, SampleFiles(run.workdir), self._events):
        sink.take_back(run.step if run.step else -1)  # Step 0 is evaluated again.
        run.writer.add(sink)
      self._record = Record(run.workdir, self._facts, run.step)
      if run.checks_first_step and not (run.is_check or run.replicator.is_async):
        self._next = ResumedStep(run, self._record.facts)
      if not run.is_check:
        self._log = LogFile(run.workdir)
        self._log.begin(self._record.facts["command"])
        progress = Progress(self._schedule.steps, run.input_context.examples, run.step,
                            keep=self._log.write)
        self._stack.enter_context(progress)
        run.show(progress)
    return self

  def __exit__(self, *error: Any) -> None:
    self._stack.__exit__(*error)

  def introduce(self, goes_on: bool) -> None:
    """Prints what will be trained, on what data, and where a resumed run begins."""
    run = self._run
    if run.is_chief and goes_on:
      self._record.note("networks", [[path, *layer] for path, layers in
                                     layers_of(run.module).items() for layer in layers])
      for line in run_summary.lines(self._record.facts, run.data(), run.parameters()):
        run.say(line)
    for line in self._notes:
      run.say(line)
    if run.step:
      run.say(f"resumed at step {run.step}" + (
          f": nothing is left to train, since train.steps = {self._schedule.steps} is not above it"
          if run.step >= self._schedule.steps else
          f": nothing is left to train, since {run.why_stopped}" if run.why_stopped else ""))
    if run.replicator.servers:
      run.say(run.replicator.servers.describe())

  def log(self, means: dict[str, float], rates: dict[str, float]) -> None:
    """Logs the means since the last log point, the learning rates, and the throughput."""
    run = self._run
    waited, elapsed = run.waiting - self._waiting, run.training - self._training
    self._waiting, self._training = run.waiting, run.training
    data_wait = ({"data_wait": waited / elapsed} if run.inputs is not None and elapsed else {})
    if run.progress:
      run.progress.update(run.step, means, data_wait.get("data_wait"))
    run.scalars = {**means, **rates, **data_wait, **self._throughput.scalars(means)}
    run.writer.scalars(run.step, run.scalars)

  def evaluated(self, found: Evaluation) -> None:
    """Logs the result of an evaluation."""
    run = self._run
    if not isinstance(found, Evaluation):
      raise UsageError(f"evaluate returned a {type(found).__name__}; return replicator.Evaluation("
                       "{'score': 0.5}), with the numbers to log")
    if run.is_chief:
      if found.method and self._record.note("evaluation", found.method):
        run.say(f"evaluation: {found.method}")
      if found.axes:
        self._record.note("axes", [f"eval/{name}" for name in found.axes])
    scalars = {f"eval/{name}": value for name, value in found.scalars.items()}
    results = {name: value for name, value in scalars.items()
               if name.removeprefix("eval/") not in found.axes}
    self._without_result = list(results) if np.isnan(list(results.values())).all() else []
    run.scalars = {**run.scalars, **scalars}
    run.writer.scalars(run.step, scalars)
    run.writer.images(run.step, found.images)
    run.writer.histograms(run.step, {f"eval/{n}": x for n, x in found.histograms.items()})
    shown = [f"{name} {value:.4g}" for name, value in scalars.items()] or [
        f"{kind} {', '.join(values)}" for kind, values in (
            ("images", found.images), ("histograms", found.histograms)) if values]
    run.say("  ".join([f"step {run.step}", *(shown or ["evaluated"])]))
    best = run.retention.keep_best or ""
    line = (f"Checkpoints.keep_best = '{best}': the evaluation has no scalars, so no checkpoint "
            "can be the best")
    if scalars:
      run.retention.check_logged(list(scalars), evaluated=True)
    elif best.startswith("eval/") and line not in run.warnings:
      run.warn(line)

  def check_best(self, names: list[str], may_log: bool) -> None:
    """Raises a UsageError if the step does not log the scalar that determines the best checkpoint.

    Skips the check if callbacks `may_log` the scalar.
    """
    if not may_log:
      self._run.retention.check_logged(names, evaluated=False)

  def events(self, step: int) -> contextlib.AbstractContextManager[None]:
    """Makes `tf.summary` in the body write to the run's events at this step, on the chief only."""
    return self._events.as_default(step) if self._run.is_chief else contextlib.nullcontext()

  def write_config(self) -> None:
    """Writes the operative configuration after the first call."""
    run = self._run
    if run.is_chief and not run.is_check:
      evaluated = run.evaluate is None or self._schedule.eval_every > 0
      for line in self._record.config(evaluated):
        run.say(line)
      if self._next:
        self._next.tell(self._record.changes)
      text = (run.workdir / "config.gin").read_text()
      self._events.text(0, {"config": "".join(f"    {line}\n" for line in text.splitlines())})
      self._events.hyperparameters(self._record.hyperparameters())
    run.has_begun = True
    self._throughput.begin()

  def finished(self, step: int, values: dict[str, np.ndarray]) -> None:
    """Records the scalars of a finished call that began at `step`: `{name: [steps]}`."""
    if self._next:
      self._next.finished(step, values)

  def saving(self) -> None:
    """Syncs the log to disk, so that after a crash no checkpoint is ahead of it."""
    if self._run.is_chief:
      self._metrics.sync()
    if self._next:
      self._next.saved(self._run.step)

  def failed(self, error: BaseException, calls: Calls) -> None:
    """Ends a run that failed with `error`; raises a RunFailed instead if the disk is full."""
    with contextlib.suppress(RunFailed):  # It would hide the first error.
      self._run.saver.wait()
    cause = chain_of(error)[-1]  # A UsageError, if a file of the data cannot be read.
    fault = isinstance(cause, (OSError, tf.errors.OpError)) and disk_fault(cause)
    if self._log:
      self._log.write(f"{error}" if isinstance(error, Preempted) else f"error: {line_of(error)}")
    if not fault:
      with contextlib.suppress(OSError):  # As above: the saver may have hit the full disk first.
        self._run.writer.flush()
        if isinstance(error, Preempted):
          self._note_end("interrupted")
        elif isinstance(error, Exception) and (
            self._run.has_begun or not isinstance(error, UsageError)):
          self._note_end(f"failed: {line_of(error)}")
    calls.end(error)
    if fault:
      raise RunFailed(f"{self._run.workdir}: can no longer be written ({fault}); the checkpoints "
                      "are intact") from error

  def done(self, calls: Calls) -> None:
    """Ends a run that has reached its last step, or that a callback has stopped.

    Raises a RunFailed if all its evaluations returned only NaN.
    """
    if self._without_result and self._run.is_chief and not any(
        math.isfinite(row.get(name, math.nan)) for row in reader.read(self._run.workdir).rows
        for name in self._without_result):
      raise RunFailed(f"all evaluations returned only NaN, for {', '.join(self._without_result)}: "
                      "the lines above say why; the checkpoints have the trained weights")
    self._note_end(EARLY if self._run.why_stopped else "")
    calls.end(None)
    self._run.writer.flush()

  def _note_end(self, ended: str) -> None:
    if self._run.is_chief:
      self._record.note("ended", ended)
