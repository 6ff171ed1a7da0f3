"""The protocol of trackers: services, or files, that get what a run logs.

    @gin.configurable
    class TextFile(Tracker):
      def open(self, run):
        self.file = (run.workdir / f"log-{run.id}.txt").open("a")

      def send(self, line):
        print(line.step, line.scalars, file=self.file, flush=True)

      def close(self, status):
        print(status, file=self.file)
        self.file.close()
"""

import importlib.util

from replicator.errors import Preempted, UsageError
from replicator.tools.trackers.outbox import (
  FAILED,
  FINISHED,
  INTERRUPTED,
  Line,
  Outbox,
  TrackedRun,
)
from replicator.training.callbacks.callback import Callback
from replicator.training.evaluation import Evaluation
from replicator.training.run import Run


class Tracker(Callback):
  """A callback that sends what a run logs to a service, or a file, as soon as it is logged.

  A tracker of yours defines `open`, `send` and `close`. Their calls come from one thread, which is
  not the training's, so that they may take their time. What they raise is reported in one line, and
  the run goes on; later, `open` is called again, and what was not sent comes again.
  """

  in_checks = False

  def open(self, run: TrackedRun) -> int | None:
    """Opens the record of `run.id`, a new or an earlier one.

    Returns the last step that the record has, or -1; later steps come. If it returns None, the
    workdir knows the last step that `send` took; after a kill this line may come a second time.
    """
    raise NotImplementedError

  def send(self, line: Line) -> None:
    """Adds what was logged at a step; steps increase, but one may have images and text later."""
    raise NotImplementedError

  def close(self, status: str) -> None:
    """Closes the record of a run that is 'finished', 'failed' or 'interrupted'."""

  def begin(self, run: Run) -> None:
    """Gets from now on what the run logs."""
    name = type(self).__name__
    alike = [id(each) for each in run.schedule.callbacks if type(each) is type(self)]
    place = alike.index(id(self))
    self._name = f"{name}-{place + 1}" if place else name
    self._outbox = Outbox(self, self._name, run)
    run.writer.add(self._outbox)

  def after_steps(self, run: Run) -> None:
    """Begins to send, since the configuration is complete."""
    self._outbox.start()

  def evaluated(self, run: Run, found: Evaluation) -> None:
    """Begins to send, if the configuration is complete."""
    if run.has_begun:
      self._outbox.start()

  def end(self, run: Run, error: BaseException | None) -> None:
    """Sends the rest, and closes the record; waits 30 s at most, or 3 s in a hurry."""
    if run.has_begun or not error:
      is_hurried = error is not None and not isinstance(error, Exception)
      run.doing(f"sending the last lines to {self._name}")
      self._outbox.start()
      self._outbox.end(
          FINISHED if error is None else
          INTERRUPTED if is_hurried or isinstance(error, Preempted) else FAILED,
          seconds=3.0 if is_hurried else 30.0)


def require(service: Tracker) -> None:
  """Raises a UsageError if the package of a service is not installed."""
  name = type(service).__name__
  if importlib.util.find_spec(name.lower()) is None:
    raise UsageError(f"@{name}() needs its package: pip install 'replicator[{name.lower()}]'")
