"""The training loop: steps, log points, evaluations, checkpoints, and an orderly end.

    for each call of `steps_per_call` steps:
        take the next global batches, run the replica step on every replica
        every log_every steps         log each scalar's mean since the last log point, or a counter
        every eval_every steps        evaluate
        whenever a callback is due    call it; it may stop the run
        every checkpoint_every steps  save
        on SIGTERM or SIGINT          save and stop
        on non-finite numbers         do what `Guard.action` says

A checkpoint holds everything that the next step depends on: the variables; the step number, which
determines the data and every random stream; and the sums since the last log point. With
deterministic operations, a run that is killed and restarted equals an uninterrupted one bit for
bit.
"""

import collections
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from replicator.configuration import operative
from replicator.errors import Preempted
from replicator.processes import GivenUp
from replicator.step import context as step_context
from replicator.strategies.compiled_step import CompiledStep
from replicator.strategies.running_call import RunningCall
from replicator.training.callbacks.calls import Calls
from replicator.training.checks.divided_step import compare_with_one_device
from replicator.training.checks.rows import rows_compared
from replicator.training.checks.undone import next_step
from replicator.training.divergence.diagnostics import LearningRates, Signals
from replicator.training.divergence.rollback import Diverged
from replicator.training.evaluations import Evaluations
from replicator.training.inputs.pipeline import stream
from replicator.training.journal import Journal
from replicator.training.position import Position
from replicator.training.preemption import StopSignal
from replicator.training.run import Run

import tensorflow as tf


class Loop:
  """The training loop of one process; `journal` writes its logs, `calls` are the callbacks."""

  def __init__(self, run: Run, position: Position, journal: Journal, calls: Calls):
    self._run, self._schedule, self._guard = run, run.schedule, run.guard
    self._position, self._journal, self._calls = position, journal, calls
    self._saver, self._hangs = run.saver, run.replicator.detect_hangs()
    self._evaluations = Evaluations(run, journal)
    self._hooks = [*([Signals(run.module)] if run.guard.signals else []), *calls.hooks]
    self._rates = LearningRates(run.module)
    self._stream = stream(None, run.input_context)
    self._batches: Iterator[Any] = self._stream

  def train(self, ready: Callable[[], None]) -> None:
    """Trains up to the last step; calls `ready` once it handles signals; raises like `train`."""
    with self._hangs, self._journal as journal, self._stop_signal() as stop:
      ready()
      try:
        with self._saved_when_given_up():
          self._begin(stop)
          while self._diverged(stop):
            pass
        self._saver.wait()
        self._calls.saved()
        journal.done(self._calls)
      except BaseException as error:
        journal.failed(error, self._calls)
        raise
      finally:
        self._stream.close()

  # ---- The beginning ----------------------------------------------------------------------------

  def _begin(self, stop: StopSignal) -> None:
    run = self._run
    self._calls.begin()
    self._saver.add(self._schedule.modules)
    self._journal.introduce(self._goes_on)
    self._prepare()
    self._batches = rows_compared(run, self._batches)
    if run.step == 0:
      if run.evaluate and self._schedule.eval_every and not run.before_call and self._can_trace:
        # Trace before the evaluation, which may take minutes.
        run.doing("preparing the first batch")
        first = next(self._batches)
        self._batches = itertools.chain([first], self._batches)
        self._trace(first)
        operative.check_scopes()
      run.doing("evaluating")
      self._at_boundary()
      # Several workers agree to stop in the first call.
      if stop.received and run.replicator.num_pipelines == 1:
        self._preempt()
      is_evaluated = run.evaluate and self._schedule.eval_every
      if self._guard.action == "roll_back" or (is_evaluated and run.retention.is_of_evaluations):
        self._save()

  @property
  def _goes_on(self) -> bool:
    return self._run.step < self._schedule.steps and not self._run.why_stopped

  @property
  def _can_trace(self) -> bool:
    return not (self._run.replicator.is_async or tf.config.functions_run_eagerly())

  def _prepare(self) -> None:
    """Prepares the compiled step and the stream of its batches from the current step on."""
    run, steps_per_call = self._run, self._schedule.steps_per_call
    self._compiled = CompiledStep(run.replicator, run.module, steps_per_call, logs=True,
                                  hooks=self._hooks, events=self._journal.events)
    self._stream.close()
    self._stream = stream(
        run.inputs, run.input_context, run.step + self._position.rollback.skipped, steps_per_call)
    self._batches = self._stream

  def _trace(self, batch: Any) -> None:
    """Traces the step, to report its errors and warnings before anything takes minutes."""
    self._run.doing("compiling the step")
    names = self._compiled.trace(batch)
    self._run.warn(*self._compiled.warnings())
    if not self._run.is_check:
      self._saver.check_complete(self._compiled)
    self._journal.check_best(names, self._calls.may_log)
    self._guard.check_limits(names)

  # ---- Steps ------------------------------------------------------------------------------------

  def _diverged(self, stop: StopSignal) -> bool:
    """Trains to the end, or rolls back on divergence; returns whether training diverged."""
    try:
      self._train(stop)
      return False
    except Diverged as diverged:
      self._run.say(self._position.roll_back(diverged))
      self._run.writer.take_back(self._run.step)
      if self._run.progress:
        self._run.progress.go_back(self._run.step)
      self._prepare()
      return True

  def _train(self, stop: StopSignal) -> None:
    run, schedule, replicator = self._run, self._schedule, self._run.replicator
    started = time.monotonic() - run.seconds
    if not run.has_begun:
      run.doing("preparing the first batch")
    running: collections.deque[tuple] = collections.deque()
    while self._goes_on:
      begun = time.monotonic()
      batch = run.batch = next(self._batches)
      run.waiting += time.monotonic() - begun
      if run.before_call:
        with step_context.before_step(run.step):
          run.before_call(run.module, run.step)
      is_first = not run.has_begun
      if is_first and self._can_trace:
        self._trace(batch)
        if run.step == 0 and run.checks_first_step and not run.is_check:
          compare_with_one_device(run, self._compiled, batch)
      called = time.monotonic()
      with self._hangs.waiting():
        running.append((run.step, batch, self._compiled(run.step, batch, stop.received)))
      run.step += schedule.steps_per_call
      is_due = schedule.is_due(run.step)
      # An agent must not act with weights that the guard has not checked.
      finish_all = is_due or stop.received or is_first or (
          run.before_call is not None and not replicator.is_async)
      while running and (finish_all or len(running) > replicator.max_running):
        self._finish(stop, *running.popleft())
      now = time.monotonic()
      run.computing += now - called
      run.training += now - begun
      run.call_seconds = now - begun
      run.seconds = now - started
      if is_first:
        self._after_first_call()
      if finish_all:
        run.warn(*self._compiled.warnings())
      if is_due:
        self._at_boundary()
      if stop.agreed and not run.why_stopped:
        self._preempt()

  def _finish(self, stop: StopSignal, step: int, batch: Any, call: RunningCall) -> None:
    """Waits for a call, checks its numbers with the guard, and adds them to the means."""
    with self._hangs.waiting():
      values, agreed = call.fetch()
    self._position.rollback.check(step, values, batch, self._run.say)
    self._journal.finished(step, values)
    self._position.means.add(values, call.counters)
    stop.agreed |= agreed

  def _after_first_call(self) -> None:
    self._run.doing("")
    if not (self._run.is_check or tf.config.functions_run_eagerly()):
      if not self._can_trace:  # Otherwise it was checked before the call.
        self._saver.check_complete(self._compiled)
      self._saver.check_copies(self._compiled)
      # Schedules span the whole run, even if this process runs only its first steps.
      self._run.warn(*self._rates.warnings(step_context.run.steps or self._schedule.steps))
    self._journal.write_config()

  # ---- Between steps ----------------------------------------------------------------------------

  def _at_boundary(self) -> None:
    """Logs, evaluates, calls callbacks and saves, as due at this step."""
    run, schedule, journal = self._run, self._schedule, self._journal
    if run.step and schedule.logs_at(run.step):
      means = self._position.means.take()
      journal.log(means, self._rates.now() if run.guard.signals else {})
      run.warn(*self._compiled.outdated())
      run.doubt(means)
      for warning in self._guard.at_log_point(
          run.step, means, getattr(run.module, "may_collapse", {})):
        run.say(warning)
    found = self._evaluations.due()
    with self._calls.changed_alike():
      if found:
        self._calls.evaluated(found)
      self._calls.after_steps()
    run.writer.flush()
    if run.why_stopped:
      run.say(f"stopped early at step {run.step}: {run.why_stopped}")
    if run.step and (schedule.saves_at(run.step) or run.why_stopped):
      if self._guard.is_sound:
        self._save()
      else:
        run.say(f"warning: step {run.step}: not saved, since its numbers are not finite")
    self._saver.check_written()
    self._calls.saved()

  def _save(self) -> None:
    self._journal.saving()
    step, every = self._run.step, self._schedule.checkpoint_every
    self._position.save(due=not step or bool(every and step % every == 0))

  def _stop_signal(self) -> StopSignal:
    return StopSignal(self._say_stopping, alone=self._run.replicator.num_pipelines == 1)

  @contextlib.contextmanager
  def _saved_when_given_up(self) -> Iterator[None]:
    """Saves and ends the run if the body gives up a wait."""
    try:
      yield
    except GivenUp as missing:
      self._run.say(f"{missing}, and the run no longer waits for it")
      self._preempt()

  def _say_stopping(self, line: str) -> None:
    self._run.say(line)
    self._run.doing("stopping")

  def _preempt(self) -> NoReturn:
    """Saves, if this step is not saved yet, and ends the run."""
    run = self._run
    self._position.check_sound()
    if self._position.saved_step != run.step:
      self._save()
    self._saver.wait()
    self._calls.saved()
    if scalars := next_step(run, self._compiled, self._batches):
      self._journal.finished(run.step, scalars)
    raise Preempted(run.step)
