"""The training loop: steps, log points, evaluations, checkpoints, and an orderly end.

    for each call of `steps_per_call` steps:
        take the next global batches, run the replica step on every replica
        every log_every steps         log the mean of each scalar since the last log point
        every eval_every steps        evaluate, draw a picture
        every checkpoint_every steps  save
        on SIGTERM or SIGINT          save and stop
        on numbers that are not finite  what `guard.Guard` is set to do

A checkpoint holds all that the next step depends on: variables, the step, from which follow the
data and every random stream, and the sums since the last log point. With deterministic operations
a run that was killed and started again is, bit for bit, the run that was not.
"""

import collections
import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

import tensorflow as tf

from replicator.atomic import disk_fault
from replicator.checkpoints import checkpoint
from replicator.errors import Preempted, RunFailed, UsageError
from replicator.step import collectives
from replicator.strategies.replicator import Replicator
from replicator.training import inputs as inputs_lib
from replicator.training.chief import Chief
from replicator.training.guard import Guard
from replicator.training.preemption import StopSignal
from replicator.training.recovery import Failed, Watch
from replicator.training.scalars import RunningMeans
from replicator.training.training_function import TrainingFunction
from replicator.workdir.writer import check_workdir


@dataclasses.dataclass(frozen=True)
class Schedule:
  """At which steps what is due; each number is that of `replicator.train`."""

  steps: int
  steps_per_call: int
  log_every: int
  eval_every: int
  checkpoint_every: int

  def due(self, every: int, step: int) -> bool:
    """Whether what happens `every` so many steps does so after step `step`."""
    return every > 0 and (step % every == 0 or step == self.steps)


class Loop:
  """One process's part in a run.

  Args:
    replicator: runs the step.
    step_object: returns a dict of scalars.
    schedule: when to log, evaluate, save and end.
    evaluate: called with the step; or None.
    before_call: called with the step and its number before each call of the compiled steps.
    workdir: where it resumes, too.
    facts: for `run.json`.
    guard: looks at the scalars of every step.

  Raises:
    UsageError: the workdir or its checkpoints do not go with the step.
  """

  def __init__(self, replicator: Replicator, step_object: Callable, schedule: Schedule,
               evaluate: Callable | None, before_call: Callable | None, workdir: pathlib.Path,
               facts: dict, guard: Guard):
    is_chief = replicator.worker_id == 0
    if is_chief:
      check_workdir(workdir)
    self.replicator = replicator
    self.schedule = schedule
    self.checkpoints = checkpoint.Checkpoints(workdir / "checkpoints", step_object, replicator)
    if not (evaluate and schedule.eval_every):
      self.checkpoints.check_logged([], evaluated=True)
    self.guard = guard
    self.watch = Watch(guard, replicator, workdir, facts)
    self.workdir = workdir
    self.make_function = lambda: TrainingFunction(replicator, step_object, schedule.steps_per_call,
                                                  guard.signals)
    self.function = self.make_function()
    self.before_call = (lambda step: before_call(step_object, step)) if before_call else None
    self.step = 0
    self.saved_step: int | None = None
    self.seconds = 0.0
    self.window = RunningMeans()
    self._called = False
    self._leaves_out_evaluation = evaluate is not None and not schedule.eval_every
    self._restore()
    self.chief = (Chief(workdir, facts, self.step, (lambda: evaluate(step_object))
                        if evaluate else None) if is_chief else None)

  def run(self, make_iterator: Callable[[int], Iterator]) -> None:
    """Trains up to the last step.

    Args:
      make_iterator: makes the iterator of batches that begins with the step it is given.
    """
    with self.chief.progress if self.chief else contextlib.nullcontext(), StopSignal() as stop:
      try:
        self._tell_start()
        self._run(make_iterator, stop)
        self.checkpoints.wait()
      except BaseException as error:
        with contextlib.suppress(RunFailed):  # Lest it hides what went wrong first.
          self.checkpoints.wait()
        if isinstance(error, (OSError, tf.errors.OpError)) and (fault := disk_fault(error)):
          raise RunFailed(f"{self.workdir}: cannot be written any more ({fault}); the checkpoints "
                          "are as they were") from error
        raise
      if self.chief:
        self.chief.finish()

  def _tell_start(self) -> None:
    if not self.chief:
      return
    if self.step:
      self.chief.progress.note(f"resumed at step {self.step}")
    if self.replicator.servers:
      self.chief.progress.note(self.replicator.servers.describe())

  def _run(self, make_iterator: Callable[[int], Iterator], stop: StopSignal) -> None:
    if self.step == 0:
      self._at_boundary()
      # Several workers agree in the first call.
      if stop.received and self.replicator.num_pipelines == 1:
        self._stop()
      if self.guard.action == "roll_back":
        self._save({})
    started = time.monotonic() - self.seconds
    while True:
      try:
        return self._train(make_iterator(self.step + self.watch.skipped), stop, started)
      except Failed as failed:
        self._go_back(failed)

  def _train(self, iterator: Iterator, stop: StopSignal, started: float) -> None:
    running: collections.deque[tuple] = collections.deque()
    while self.step < self.schedule.steps:
      batches = next(iterator)
      if self.before_call:
        self.before_call(self.step)
      running.append((self.step, batches, self.function(self.step, batches, stop.received)))
      self.step += self.schedule.steps_per_call
      all_done = self._is_boundary() or stop.received or not self._called
      while running and (all_done or len(running) > self.replicator.max_running):
        first_step, batches, result = running.popleft()
        values, agreed = result.fetch()
        self.watch.look(first_step, values, batches, self._tell)
        self.window.add(values)
        stop.agreed |= agreed
      self.seconds = time.monotonic() - started
      if not self._called:
        self._after_first_call()
      self._at_boundary()
      if stop.agreed:
        self._stop()

  def _stop(self) -> NoReturn:
    """Saves, if that is not done, and ends the run."""
    if not self.guard.is_sound:
      raise RunFailed(f"stopped at step {self.step}, which is not saved, since its numbers are not "
                      f"finite; {self.watch.last_checkpoint()}")
    if self.saved_step != self.step:
      self._save({})
    self.checkpoints.wait()
    raise Preempted(self.step)

  def _is_boundary(self) -> bool:
    s = self.schedule
    return any(s.due(every, self.step) for every in (s.log_every, s.eval_every, s.checkpoint_every))

  def _at_boundary(self) -> None:
    """Logs, evaluates and saves what is due at this step."""
    s = self.schedule
    scalars: dict[str, float] = {}
    if self.step and s.due(s.log_every, self.step):
      scalars = self.window.take()
      self.checkpoints.check_logged(list(scalars), evaluated=False)
      if self.chief:
        self.chief.progress.update(self.step, scalars)
      if warning := self.guard.at_log_point(self.step, scalars):
        self._tell(warning)
    if self.chief:
      if s.due(s.eval_every, self.step) and (found := self.chief.evaluate(self.step)):
        self.checkpoints.check_logged(list(found), evaluated=True)
        scalars = {**scalars, **found}
      self.chief.log(self.step, self.seconds, scalars)
    if self.step and s.due(s.checkpoint_every, self.step):
      if self.guard.is_sound:
        self._save(scalars)
      else:
        self._tell(f"warning: step {self.step}: not saved, since its numbers are not finite")
    self.checkpoints.check_written()

  def _save(self, scalars: dict[str, float]) -> None:
    self.checkpoints.save(
        self.step, {"seconds": self.seconds, "window": self.window.state(),
                    **self.watch.state()}, scalars)
    self.saved_step = self.step

  def _tell(self, line: str) -> None:
    if self.chief:
      self.chief.progress.note(line)

  def _go_back(self, failed: Failed) -> None:
    """Goes back to the last checkpoint, if the guard says so."""
    with contextlib.suppress(RunFailed):  # Lest it hides what went wrong first.
      self.checkpoints.wait()
    self.watch.check_may_go_back(failed)
    counted = self.watch.state()
    self._restore()
    line = self.watch.went_back(failed, self.step, **counted)
    self.function = self.make_function()
    if self.chief:
      self.chief.roll_back(self.step, line)

  def _after_first_call(self) -> None:
    self._called = True
    if not tf.config.functions_run_eagerly():
      self.checkpoints.check_complete(self.function.variables())
    if self.chief:
      for line in self.chief.record.config(evaluated=not self._leaves_out_evaluation):
        self.chief.progress.note(line)

  def _restore(self) -> None:
    state = self.checkpoints.restore()
    if state is not None:
      self.step, self.seconds = state["step"], state["seconds"]
      self.window = RunningMeans(state["window"])
      self.watch.restore(state)
    if self.replicator.num_pipelines > 1:
      mine = tf.constant(self.step, tf.int64)
      by_replica = self.replicator.run(lambda: collectives.all_gather(mine))[0].numpy()
      check_agreement(by_replica[::self.replicator.num_local_replicas].tolist())


def check_agreement(steps: list[int]) -> None:
  """Checks that all workers, of which `steps` tells, have restored the same step.

  Raises:
    UsageError: they have not; it names those that differ from most.
  """
  most = max(steps, key=lambda step: (steps.count(step), step))
  others = [f"worker {i} restored step {step}" for i, step in enumerate(steps) if step != most]
  if others:
    raise UsageError(f"--workdir: {', '.join(others)}, the others step {most}; all workers must "
                     "see the same workdir, on a file system that they share")


def iterator(inputs: inputs_lib.Inputs | None, context: inputs_lib.InputContext,
             first_step: int, steps_per_call: int) -> Iterator:
  """This worker's batches, those of `steps_per_call` steps at a time, from step `first_step` on."""
  if inputs is None:
    while True:
      yield None
  dataset = inputs_lib.batches(inputs, context, first_step)
  yield from dataset.batch(steps_per_call, drop_remainder=True).prefetch(1)
  raise UsageError("the data set of the input function ended before train.steps; make it repeat()")
