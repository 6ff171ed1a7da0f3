"""A profile of some steps: where their time went, in a few lines and for TensorBoard."""

import collections
import time

from replicator.console.formatting import format_number, labeled
from replicator.errors import UsageError
from replicator.internals.tensorflow_internals import operation_times
from replicator.training.callbacks.callback import Callback
from replicator.training.run import Run

import gin
import tensorflow as tf

_SHOWN = 10  # The number of operations to print.


@gin.configurable(module="replicator")
class Profile(Callback):
  """A callback that profiles some steps and prints where their time went.

  TensorBoard shows the full profile from the workdir. The range is widened to whole calls of
  `train.steps_per_call` steps. A run that resumes after the first of them profiles nothing.

  Args:
    first: the first step to profile, counted from 1.
    last: the last step to profile.

  Raises a UsageError if the steps are not in this order.
  """

  in_checks = False
  every = 0
  on_all_workers = True  # `at` must be the same on all workers; only the chief profiles.

  def __init__(self, first: int, last: int):
    if not 1 <= first <= last:
      raise UsageError(f"Profile.first = {first} and last = {last}: must be the first and last "
                       "steps to profile, counted from 1")
    self._first, self._last = first, last
    self._is_running = False

  def begin(self, run: Run) -> None:
    """Chooses the calls to profile; raises a UsageError if the run ends earlier."""
    if self._last > run.schedule.steps:
      raise UsageError(f"Profile.last = {self._last}: must be at most train.steps = "
                       f"{run.schedule.steps}")
    each = run.schedule.steps_per_call
    self._begin, self._end = (self._first - 1) // each * each, -(-self._last // each) * each
    self.at = {self._begin, self._end}
    self._start_if_due(run)

  def after_steps(self, run: Run) -> None:
    """Starts the profile, or ends and reports it."""
    if self._is_running and run.step == self._end:
      elapsed = time.monotonic() - self._started
      self._stop(save=True)
      self._report(run, elapsed)
    self._start_if_due(run)

  def end(self, run: Run, error: BaseException | None) -> None:
    """Drops a profile whose steps were interrupted."""
    if self._is_running:
      self._stop(save=False)

  def _start_if_due(self, run: Run) -> None:
    if run.step == self._begin and run.is_chief:
      if self._is_running:  # The run was rolled back.
        self._stop(save=False)
      tf.profiler.experimental.start(str(run.workdir))
      self._is_running = True
      self._started, self._before = time.monotonic(), (run.waiting, run.computing)

  def _stop(self, save: bool) -> None:
    self._is_running = False
    tf.profiler.experimental.stop(save)

  def _report(self, run: Run, elapsed: float) -> None:
    steps = self._end - self._begin
    waited, ran = (now - before for now, before in zip(
        (run.waiting, run.computing), self._before, strict=True))
    host = elapsed - waited - ran
    run.say(labeled("profile", f"steps {self._begin + 1} to {self._end}: "
                    f"{format_number(1e3 * elapsed / steps)} ms each; input "
                    f"{waited / elapsed:.0%}, step {ran / elapsed:.0%}, host {host / elapsed:.0%}"))
    newest = max(run.workdir.glob("plugins/profile/*/*.xplane.pb"))
    times = collections.Counter(operation_times(newest.read_bytes()))
    for name, seconds in times.most_common(_SHOWN):
      run.say(labeled("", f"{seconds / times.total():4.0%}  "
                      f"{format_number(1e3 * seconds / steps)} ms per step  {name}"))
    run.say(labeled("", f"{'more' if times else 'its operations'}: tensorboard "
                    f"--logdir={run.workdir} (needs the package xprof)"))
