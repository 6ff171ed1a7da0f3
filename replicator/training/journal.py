"""What the chief writes and shows of a run; on other workers it does neither."""

import contextlib
from typing import Any

from replicator.atomic import disk_fault
from replicator.console.error_line import line_of
from replicator.console.status import Progress
from replicator.errors import Preempted, RunFailed, UsageError, chain_of
from replicator.training.callbacks.calls import Calls
from replicator.training.checks.resumed_step import ResumedStep
from replicator.training.evaluation import Evaluation
from replicator.training.run import Run
from replicator.training.workdir import run_summary
from replicator.training.workdir.reader import EARLY
from replicator.training.workdir.record import Record
from replicator.training.workdir.sinks import MetricsFile, SampleFiles, TensorBoard

import numpy as np
import tensorflow as tf


class Journal:
  """Writes the workdir of a run, and shows its progress, from entry to exit.

  `facts` are for `run.json`; `notes` are lines on how the run began.
  """

  def __init__(self, run: Run, facts: dict, notes: list[str]):
    self._run, self._schedule = run, run.schedule
    self._facts, self._notes = facts, notes
    self._waiting = self._training = 0.0  # Those of the run at the last log point.
    self._next: ResumedStep | None = None  # On the chief, if it compares its steps.

  def __enter__(self) -> "Journal":
    run = self._run
    self._stack = contextlib.ExitStack().__enter__()
    if run.is_chief:
      run.workdir.joinpath("samples").mkdir(parents=True, exist_ok=True)
      self._metrics, self._events = MetricsFile(run.workdir), TensorBoard(run.workdir)
      for sink in (self._metrics, SampleFiles(run.workdir), self._events):
        sink.take_back(run.step if run.step else -1)  # Step 0 is evaluated again.
        run.writer.add(sink)
      self._record = Record(run.workdir, self._facts, run.step)
      if run.checks_first_step and not (run.is_check or run.replicator.is_async):
        self._next = ResumedStep(run, self._record.facts)
      if not run.is_check:
        progress = Progress(self._schedule.steps, self._facts["global_batch_size"], run.step)
        self._stack.enter_context(progress)
        run.show(progress)
    return self

  def __exit__(self, *error: Any) -> None:
    self._stack.__exit__(*error)

  def introduce(self, goes_on: bool) -> None:
    """Says what will be trained, on what, and where a resumed run begins."""
    run = self._run
    if run.is_chief and goes_on:
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
    """Logs the means since the last log point, the learning rates, and the wait for data."""
    run = self._run
    waited, elapsed = run.waiting - self._waiting, run.training - self._training
    self._waiting, self._training = run.waiting, run.training
    data_wait = ({"data_wait": waited / elapsed} if run.inputs is not None and elapsed else {})
    if run.progress:
      run.progress.update(run.step, means, data_wait.get("data_wait"))
    run.scalars = {**means, **rates, **data_wait}
    run.writer.scalars(run.step, run.scalars)

  def evaluated(self, found: Evaluation) -> None:
    """Logs what an evaluation found."""
    run = self._run
    if not isinstance(found, Evaluation):
      raise UsageError(f"evaluate returned a {type(found).__name__}; return replicator.Evaluation("
                       "{'score': 0.5}), of numbers to log")
    if run.is_chief:
      if found.method and self._record.note("evaluation", found.method):
        run.say(f"evaluation: {found.method}")
      if found.axes:
        self._record.note("axes", [f"eval/{name}" for name in found.axes])
    scalars = {f"eval/{name}": value for name, value in found.scalars.items()}
    run.scalars = {**run.scalars, **scalars}
    run.writer.scalars(run.step, scalars)
    run.writer.images(run.step, found.images)
    run.writer.histograms(run.step, {f"eval/{n}": x for n, x in found.histograms.items()})
    shown = [f"{name} {value:.4g}" for name, value in scalars.items()] or [
        f"{kind} {', '.join(values)}" for kind, values in (
            ("images", found.images), ("histograms", found.histograms)) if values]
    run.say("  ".join([f"step {run.step}", *(shown or ["evaluated"])]))
    best = run.retention.keep_best or ""
    line = (f"Checkpoints.keep_best = '{best}': the evaluation has no scalars, and without one of "
            "that name no checkpoint is the best")
    if scalars:
      run.retention.check_logged(list(scalars), evaluated=True)
    elif best.startswith("eval/") and line not in run.warnings:
      run.warn(line)

  def check_best(self, names: list[str], may_log: bool) -> None:
    """Raises a UsageError if no step logs the scalar that names the best checkpoint.

    Callbacks that `may_log` may have it.
    """
    if not may_log:
      self._run.retention.check_logged(names, evaluated=False)

  def events(self, step: int) -> contextlib.AbstractContextManager[None]:
    """In the body, `tf.summary` writes to the run's events, as of this step; on the chief alone."""
    return self._events.as_default(step) if self._run.is_chief else contextlib.nullcontext()

  def write_config(self) -> None:
    """Writes the operative configuration after the first call; see `operative.after_first_step`."""
    run = self._run
    if run.is_chief and not run.is_check:
      evaluated = run.evaluate is None or self._schedule.eval_every > 0
      lines = self._record.config(evaluated)
      for line in lines:
        run.say(line)
      if self._next:
        self._next.tell([line for line in lines if line.startswith("changed:")])
      text = (run.workdir / "config.gin").read_text()
      self._events.text(0, {"config": "".join(f"    {line}\n" for line in text.splitlines())})
    run.has_begun = True

  def finished(self, step: int, values: dict[str, np.ndarray]) -> None:
    """A call that began with step number `step` has returned the scalars `[steps]`, by name."""
    if self._next:
      self._next.finished(step, values)

  def saving(self) -> None:
    """Forces the log to the disk: a crash of the machine must not leave a checkpoint ahead of it.
    """
    if self._run.is_chief:
      self._metrics.sync()
    if self._next:
      self._next.saved(self._run.step)

  def failed(self, error: BaseException, calls: Calls) -> None:
    """Ends a run that an `error` has ended; a disk that is full becomes a RunFailed."""
    with contextlib.suppress(RunFailed):  # It would hide the first error.
      self._run.saver.wait()
    cause = chain_of(error)[-1]  # A UsageError, if a file of the data cannot be read.
    fault = isinstance(cause, (OSError, tf.errors.OpError)) and disk_fault(cause)
    if not fault:
      with contextlib.suppress(OSError):  # As above: a full disk may have failed the saver first.
        self._run.writer.flush()
        if isinstance(error, Preempted):
          self._note_end("interrupted")
        elif isinstance(error, Exception) and (
            self._run.has_begun or not isinstance(error, UsageError)):
          self._note_end(f"failed: {line_of(error)}")
    calls.end(error)
    if fault:
      raise RunFailed(f"{self._run.workdir}: cannot be written any more ({fault}); the checkpoints "
                      "are as they were") from error

  def done(self, calls: Calls) -> None:
    """Ends a run that has made its last step, or that a callback has stopped."""
    self._note_end(EARLY if self._run.why_stopped else "")
    calls.end(None)
    self._run.writer.flush()

  def _note_end(self, ended: str) -> None:
    if self._run.is_chief:
      self._record.note("ended", ended)
