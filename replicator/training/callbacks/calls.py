"""Calls the callbacks of a run."""

import contextlib
import zlib
from collections.abc import Callable, Iterable, Iterator

from replicator.console.error_line import line_of
from replicator.errors import Preempted, RunFailed, UsageError
from replicator.step.hooks import Hook
from replicator.strategies import one_replica
from replicator.training.callbacks.callback import Callback, is_installed
from replicator.training.evaluation import Evaluation
from replicator.training.run import Run


class Calls:
  """The callbacks of a run, called in order, on the chief or on all workers.

  An error in a callback becomes a RunFailed, or stays a UsageError, with the callback's name.
  """

  def __init__(self, run: Run):
    self._run, self._all = run, run.schedule.callbacks
    self._here = [each for each in self._all if run.is_chief or each.on_all_workers]
    self._begun: list[Callback] = []

  @property
  def hooks(self) -> list[Hook]:
    """The hooks of all callbacks; the same on all workers, which must trace the same step."""
    return [hook for callback in self._all for hook in callback.hooks]

  @property
  def may_log(self) -> bool:
    """Whether a callback may log its own scalars."""
    return any(callback.in_checks for callback in self._all)

  def begin_installed(self) -> None:
    """Begins the callbacks installed around the program, before anything is read or written."""
    self._begin(filter(is_installed, self._here))

  def begin(self) -> None:
    """Begins the others; raises a UsageError if the workers would call different ones at a step."""
    self._begin(each for each in self._here if not is_installed(each))
    for callback in self._all:
      due = zlib.crc32(repr((callback.every, sorted(callback.at))).encode())
      if len({*self._run.replicator.by_worker(float(due))}) > 1:
        raise UsageError(f"{type(callback).__name__}.every and at: must be the same on all "
                         "workers; set them in the constructor, or set on_all_workers = True")

  def _begin(self, callbacks: Iterable[Callback]) -> None:
    for callback in callbacks:
      self._begun.append(callback)
      with self._named(callback, "begin"):
        callback.begin(self._run)

  def evaluated(self, found: Evaluation) -> None:
    """Passes on the result of an evaluation."""
    self._each(lambda callback: callback.evaluated(self._run, found), "evaluated")

  def after_steps(self) -> None:
    """Calls the callbacks due at this step; then the workers agree on whether to stop."""
    run = self._run
    due = [each for each in self._all if self._run.schedule.calls_at(each, run.step)]
    for callback in due:
      if callback in self._here:
        with self._named(callback, "after_steps"):
          callback.after_steps(run)
    may_stop = due or (self._all and self._run.schedule.evaluates_at(run.step))
    if may_stop and run.replicator.by_worker(float(bool(run.why_stopped))).any():
      run.stop("another worker stopped the run")

  def changed_alike(self) -> contextlib.AbstractContextManager[None]:
    """Raises a UsageError if the user's callbacks change the step on one worker only.

    The body calls the callbacks due at this step.
    """
    run = self._run
    is_evaluated = run.evaluate is not None and run.schedule.evaluates_at(run.step)
    names = [type(each).__name__ for each in self._all
             if not type(each).__module__.startswith("replicator.")
             and (is_evaluated or run.schedule.calls_at(each, run.step))]
    if not names:
      return contextlib.nullcontext()
    return run.saver.changed_alike(f"{' or '.join(names)} at step {run.step}")

  def saved(self) -> None:
    """Reports a checkpoint that was written since the last call, if there is one."""
    written = self._run.saver.written
    if written is not None and written != self._run.saved_step:
      self._run.saved_step = written
      self._each(lambda callback: callback.saved(self._run), "saved")

  def end(self, error: BaseException | None) -> None:
    """Ends the callbacks that have begun.

    Raises their first error, unless the run already failed with `error`; prints all others.
    """
    begun, self._begun = self._begun, []
    first: Exception | None = None
    for callback in begun:
      try:
        with self._named(callback, "end"):
          callback.end(self._run, error or first)
      except Exception as further:
        if error or first:
          self._run.say(f"warning: {line_of(further)}")
        else:
          first = further
    if first:
      raise first

  def _each(self, call: Callable[[Callback], None], method: str) -> None:
    for callback in self._here:
      with self._named(callback, method):
        call(callback)

  @contextlib.contextmanager
  def _named(self, callback: Callback, method: str) -> Iterator[None]:
    is_apart = self._run.replicator.num_workers > 1 and not callback.on_all_workers
    try:
      with one_replica.apart(is_apart):
        yield
    except (Preempted, RunFailed):
      raise
    except Exception as error:
      if is_installed(callback):  # By a command, so its name would mean nothing to the user.
        raise
      kind = UsageError if isinstance(error, UsageError) else RunFailed
      raise kind(f"{type(callback).__name__}.{method} at step {self._run.step}: {line_of(error)}"
                 ) from error
