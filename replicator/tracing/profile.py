"""A profile of some steps: what took their time, in a few lines, and for TensorBoard."""

import collections
import pathlib
import time
from collections.abc import Callable

import tensorflow as tf

from replicator.console.formatting import format_number, labeled
from replicator.internals.tensorflow_internals import operation_times

_SHOWN = 10  # Operations.


class Profile:
  """Profiles the steps after step `begin` up to step `end`; none if they are equal.

  The profile goes to `workdir`, where TensorBoard finds it, and what it found to `say`.
  """

  def __init__(self, begin: int, end: int, workdir: pathlib.Path, say: Callable[[str], None]):
    self._begin = begin
    self._end = end
    self._workdir = workdir
    self._say = say
    self._is_running = False

  def before(self, step: int) -> None:
    """Starts if the next step is the first one to profile; no earlier one may be running."""
    if step == self._begin < self._end:
      tf.profiler.experimental.start(str(self._workdir))
      self._is_running = True
      self._started = time.monotonic()
      self._waited = self._ran = 0.0

  def after(self, step: int, waited: float, ran: float) -> None:
    """Counts the seconds that a call, up to step `step`, waited for its batch, and ran.

    Ends if that was the last step to profile, which must have ended.
    """
    if not self._is_running:
      return
    self._waited += waited
    self._ran += ran
    if step == self._end:
      elapsed = time.monotonic() - self._started
      self._stop(save=True)
      self._report(elapsed)

  def drop(self) -> None:
    """Ends a profile whose steps were interrupted, and writes nothing."""
    if self._is_running:
      self._stop(save=False)

  def _stop(self, save: bool) -> None:
    self._is_running = False
    tf.profiler.experimental.stop(save)

  def _report(self, elapsed: float) -> None:
    steps = self._end - self._begin
    host = elapsed - self._waited - self._ran
    self._say(labeled("profile", f"steps {self._begin + 1} to {self._end}: "
                      f"{format_number(1e3 * elapsed / steps)} ms each; input "
                      f"{self._waited / elapsed:.0%}, step {self._ran / elapsed:.0%}, "
                      f"host {host / elapsed:.0%}"))
    newest = max(self._workdir.glob("plugins/profile/*/*.xplane.pb"))
    times = collections.Counter(operation_times(newest.read_bytes()))
    for name, seconds in times.most_common(_SHOWN):
      self._say(labeled("", f"{seconds / times.total():4.0%}  "
                        f"{format_number(1e3 * seconds / steps)} ms a step  {name}"))
    self._say(labeled("", f"tensorboard --logdir={self._workdir} shows "
                      f"{'more' if times else 'its operations'}, with the package xprof"))
