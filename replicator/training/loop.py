"""The training loop: steps, log points, evaluations, checkpoints, and an orderly end.

    for each call of `steps_per_call` steps:
        take the next global batches, run the replica step on every replica
        every log_every steps         log each scalar's mean since the last log point, or a counter
        every eval_every steps        evaluate, draw a picture; end if patience is over
        every checkpoint_every steps  save
        on SIGTERM or SIGINT          save and stop
        on numbers that are not finite  do what `Guard.action` says

A checkpoint holds all that the next step depends on: variables, the step number, which determines
the data and every random stream, and the sums since the last log point. With deterministic
operations a run that was killed and started again equals, bit for bit, the run that was not.
"""

import collections
import contextlib
import dataclasses
import itertools
import math
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import tensorflow as tf

from replicator.atomic import disk_fault
from replicator.checkpoints.checkpoint import Checkpoints
from replicator.configuration import operative
from replicator.console import start
from replicator.divergence.diagnostics import LearningRates
from replicator.divergence.guard import Guard
from replicator.divergence.recovery import Diverged, Recovery
from replicator.errors import Preempted, RunFailed, UsageError, chain_of
from replicator.inputs.inputs import digest_of, num_examples, stream
from replicator.step import context as step_context
from replicator.strategies.distributed_evaluation import Dealer
from replicator.tracing.profile import Profile
from replicator.trackers.tracker import Tracker
from replicator.training import observer
from replicator.training.chief import Chief, SilentChief
from replicator.training.observer import Training
from replicator.training.patience import Patience
from replicator.training.preemption import StopSignal
from replicator.training.run_state import RunState
from replicator.training.training_function import TrainingFunction
from replicator.workdir.reader import EARLY


@dataclasses.dataclass(frozen=True)
class Schedule:
  """When to log, evaluate, save and end; the numbers are those of `replicator.train`."""

  steps: int
  steps_per_call: int
  log_every: int
  eval_every: int
  checkpoint_every: int
  profile: tuple[int, int] = (0, 0)  # After the first of these steps, up to the other.
  patience: int = 0

  def due(self, every: int, step: int) -> bool:
    """Whether what happens every `every` steps is due after step `step`."""
    return every > 0 and (step % every == 0 or step == self.steps)

  def is_boundary(self, step: int) -> bool:
    """Whether anything is due after step `step`, so that it must have ended."""
    return step in self.profile or any(
        self.due(every, step) for every in (self.log_every, self.eval_every, self.checkpoint_every))


class Loop:
  """One process's part in a run, which resumes from `workdir`; `facts` are for `run.json`.

  Raises a UsageError if the workdir or its checkpoints do not fit the step.
  """

  def __init__(self, training: Training, schedule: Schedule, guard: Guard, workdir: pathlib.Path,
               facts: dict, trackers: Sequence[Tracker] = ()):
    replicator, step = training.replicator, training.step
    self._training = training
    self._schedule = schedule
    self._guard = guard
    self._workdir = workdir
    self._checkpoints = Checkpoints(workdir / "checkpoints", step, replicator)
    if not (training.evaluate and schedule.eval_every):
      self._checkpoints.retention.check_logged([], evaluated=True)
    self._recovery = Recovery(guard, replicator, workdir, facts)
    self._patience = Patience(schedule.patience, schedule.eval_every, self._checkpoints.retention)
    self._state = RunState(replicator, self._checkpoints, self._recovery, self._patience,
                           num_examples(training.inputs), digest_of(training.inputs))
    if why := self._missed():
      raise UsageError(why)
    self._watch = replicator.watch()
    all_evaluate = bool(getattr(training.evaluate, "on_all_workers", False))
    self._dealer = Dealer(replicator, all_evaluate)
    is_chief = replicator.worker_id == 0
    self._evaluate = training.evaluate if is_chief or all_evaluate else None
    self._chief: Chief | SilentChief = (
        Chief(workdir, facts, self._checkpoints.written, trackers) if is_chief else SilentChief())
    profiled = schedule.profile if is_chief else (0, 0)
    self._profile = Profile(*profiled, workdir, self._chief.note)
    self._rates = LearningRates(step) if guard.signals else None
    self._was_called = False
    # The seconds since the last log point: those that steps waited for their batch, and all.
    self._waited = self._elapsed = 0.0
    self._stream = stream(None, training.input_context)
    self._batches: Iterator = self._stream

  def run(self, ready: Callable[[], None]) -> None:
    """Trains up to the last step; calls `ready` when signals may come.

    Raises:
      Preempted: a signal asked the run to stop; its state is saved.
      RunFailed: a step diverged, or the workdir cannot be written any more.
    """
    start.end()  # The progress is shown from here on.
    with self._watch, self._chief, StopSignal(self._say_stopping) as stop:
      ready()
      try:
        self._run(stop)
        self._checkpoints.wait()
      except BaseException as error:
        with contextlib.suppress(RunFailed):  # It would hide the first error.
          self._checkpoints.wait()
        self._chief.settle(self._checkpoints.written)
        cause = chain_of(error)[-1]  # A UsageError, if a file of the data cannot be read.
        if isinstance(cause, (OSError, tf.errors.OpError)) and (fault := disk_fault(cause)):
          self._chief.end_trackers(error)
          raise RunFailed(f"{self._workdir}: cannot be written any more ({fault}); the checkpoints "
                          "are as they were") from error
        self._chief.finish(error)
        raise
      finally:
        self._stream.close()
      self._chief.finish(ended=EARLY if self._patience.is_over else "")

  def _missed(self) -> str:
    """Says why whole calls from the present step would miss what is due, and the end, if so."""
    step, each = self._state.step, self._schedule.steps_per_call
    if step >= self._schedule.steps or step % each == 0:
      return ""
    return (f"train.steps_per_call = {each}: does not divide step {step}, where the run resumes, "
            f"so that no call would end at a step that is due; write {math.gcd(step, each)}")

  def _say_stopping(self, line: str) -> None:
    self._chief.note(line)
    self._chief.doing("stopping")

  def _doing(self, what: str) -> None:
    """Says what takes time before the first step."""
    if not self._was_called:
      self._chief.doing(what)

  def _run(self, stop: StopSignal) -> None:
    state, training, replicator = self._state, self._training, self._training.replicator
    if self._goes_on:
      self._chief.introduce(training.data(), training.parameters())
    for line in training.notes:
      self._chief.note(line)
    if state.step:
      self._chief.note(f"resumed at step {state.step}" + (
          f": nothing is left to train, since train.steps = {self._schedule.steps} is not above it"
          if state.step >= self._schedule.steps else
          f": nothing is left to train, since {self._patience}" if self._patience.is_over else ""))
    if replicator.servers:
      self._chief.note(replicator.servers.describe())
    self._begin_here()
    if state.step == 0:
      if (training.evaluate and self._schedule.eval_every and not training.before_call
          and self._can_trace):  # It comes before the evaluation, which may take minutes.
        self._doing("preparing the first batch")
        first = next(self._batches)
        self._batches = itertools.chain([first], self._batches)
        self._trace(first)
        operative.check_scopes()
      self._doing("evaluating")
      self._at_boundary()
      # Several workers agree in the first call.
      if stop.received and replicator.num_pipelines == 1:
        self._stop()
      if self._guard.action == "roll_back":
        self._save({})
    started = time.monotonic() - state.seconds
    while True:
      try:
        return self._train(stop, started)
      except Diverged as diverged:
        line = state.roll_back(diverged)
        if why := self._missed():
          raise RunFailed(f"{diverged}; {why}") from None
        self._chief.roll_back(state.step, line)
        self._begin_here()
      finally:
        self._profile.drop()

  @property
  def _goes_on(self) -> bool:
    return self._state.step < self._schedule.steps and not self._patience.is_over

  def _begin_here(self) -> None:
    """Makes the function that trains from the present step on, and its batches."""
    training, steps_per_call = self._training, self._schedule.steps_per_call
    self._function = TrainingFunction(training.replicator, training.step, steps_per_call,
                                      self._guard.signals)
    self._stream.close()
    self._stream = stream(training.inputs, training.input_context,
                          self._state.step + self._recovery.skipped, steps_per_call)
    self._batches = self._stream

  def _trace(self, batch: Any) -> None:
    """Refuses what cannot train, and warns, before an evaluation or a first call takes minutes."""
    self._doing("compiling the step")
    names = self._function.trace(batch)
    for warning in self._function.warnings():
      self._chief.note(warning)
    self._checkpoints.check_complete(self._function.variables())
    self._checkpoints.retention.check_logged(names, evaluated=False)
    self._guard.check_limits(names)

  @property
  def _can_trace(self) -> bool:
    return not (self._training.replicator.is_async or tf.config.functions_run_eagerly())

  def _train(self, stop: StopSignal, started: float) -> None:
    state, training, function = self._state, self._training, self._function
    replicator = training.replicator
    running: collections.deque[tuple] = collections.deque()
    while self._goes_on:
      self._doing("preparing the first batch")
      self._profile.before(state.step)
      begun = time.monotonic()
      batch = next(self._batches)
      waited = time.monotonic() - begun
      observer.current().batch(state.step, batch)
      if training.before_call:
        with step_context.before_step(state.step):
          training.before_call(training.step, state.step)
      if not self._was_called and self._can_trace:
        self._trace(batch)
      self._doing("compiling the step")
      called = time.monotonic()
      with self._watch.waiting():
        running.append((state.step, batch, function(state.step, batch, stop.received)))
      state.step += self._schedule.steps_per_call
      # An agent must not act with weights that the guard has not seen.
      all_done = (self._schedule.is_boundary(state.step) or stop.received or not self._was_called
                  or (training.before_call is not None and not replicator.is_async))
      while running and (all_done or len(running) > replicator.max_running):
        first_step, batch, result = running.popleft()
        with self._watch.waiting():
          values, agreed = result.fetch()
        self._recovery.check(first_step, values, batch, self._chief.note)
        state.means.add(values, result.counters)
        stop.agreed |= agreed
      now = time.monotonic()
      state.seconds = now - started
      self._profile.after(state.step, waited, now - called)
      if training.inputs is not None:
        self._waited += waited
        self._elapsed += now - begun
      if not self._was_called:
        self._after_first_call()
      for warning in function.warnings() if all_done else ():
        self._chief.note(warning)
      self._at_boundary()
      if self._patience.is_over:
        self._chief.note(f"stopped early at step {state.step}: {self._patience}")
      elif stop.agreed:
        self._stop()

  def _at_boundary(self) -> None:
    """Logs, evaluates and saves what is due at this step."""
    s, state, chief = self._schedule, self._state, self._chief
    scalars: dict[str, float] = {}
    if state.step and s.due(s.log_every, state.step):
      scalars = state.means.take()
      data_wait = {"data_wait": self._waited / self._elapsed} if self._elapsed else {}
      self._waited = self._elapsed = 0.0
      self._checkpoints.retention.check_logged(list(scalars), evaluated=False)
      chief.show(state.step, scalars, data_wait.get("data_wait"))
      for warning in self._guard.at_log_point(
          state.step, scalars, getattr(self._training.step, "may_collapse", {})):
        self._chief.note(warning)
      scalars = {**scalars, **(self._rates.now() if self._rates else {}), **data_wait}
    if s.due(s.eval_every, state.step) and self._evaluate:
      with step_context.entered(tf.constant(state.step, tf.int64)) as here:
        here.dealer = self._dealer
        evaluation = self._evaluate(self._training.step)
      if found := chief.evaluated(state.step, evaluation):
        self._checkpoints.retention.check_logged(list(found), evaluated=True)
        scalars = {**scalars, **found}
    if scalars:
      chief.log(state.step, state.seconds, scalars)
    if s.patience and s.due(s.eval_every, state.step) and self._guard.is_sound:
      state.evaluated(scalars)
    if state.step and (s.due(s.checkpoint_every, state.step) or self._patience.is_over):
      if self._guard.is_sound:
        self._save(scalars)
      else:
        self._chief.note(f"warning: step {state.step}: not saved, since its numbers are not finite")
    self._checkpoints.check_written()
    chief.settle(self._checkpoints.written)
    if state.step and (s.due(s.eval_every, state.step) or s.due(s.checkpoint_every, state.step)):
      chief.report()

  def _save(self, scalars: dict[str, float]) -> None:
    self._chief.sync()  # A crash of the machine must not leave a checkpoint ahead of the log.
    every, step = self._schedule.checkpoint_every, self._state.step
    self._state.save(scalars, due=not step or bool(every and step % every == 0))
    observer.current().saved(self._state.step, self._checkpoints)

  def _stop(self) -> NoReturn:
    """Saves, if that is not done, and ends the run."""
    state = self._state
    if not self._guard.is_sound:
      with contextlib.suppress(RunFailed):  # It would hide the cause.
        self._checkpoints.wait()
      raise RunFailed(f"stopped at step {state.step}, which is not saved, since its numbers are "
                      f"not finite; {self._recovery.last_checkpoint()}")
    if state.saved_step != state.step:
      self._save({})
    self._checkpoints.wait()
    raise Preempted(state.step)

  def _after_first_call(self) -> None:
    self._doing("")
    self._was_called = True
    if not tf.config.functions_run_eagerly():
      self._checkpoints.check_complete(self._function.variables())
      self._checkpoints.check_copies(self._function.assigned_at)
    self._chief.write_config(
        evaluated=self._training.evaluate is None or self._schedule.eval_every > 0)
