"""The base class of trackers, which send a run's logs to a service or a file.

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
  """A callback that sends a run's logs to a service or a file as soon as they are written.

  Your tracker defines `open`, `send` and `close`. All are called in one background thread, so slow
  calls do not delay training. If they raise an error, it is reported in one line and the run
  continues; later, `open` is called again, and unsent data is sent again.
  """

  in_checks = False

  def open(self, run: TrackedRun) -> int | None:
    """Opens the record with the ID `run.id`, or creates it.

    Returns the last step in the record, or -1; later steps will be sent. If it returns None, the
    last step is taken from the workdir; after a kill, that step may be sent twice.
    """
    raise NotImplementedError

  def send(self, line: Line) -> None:
    """Adds the data of a step. Steps increase, but images and text may follow for the same step."""
    raise NotImplementedError

  def close(self, status: str) -> None:
    """Closes the record; `status` is 'finished', 'failed' or 'interrupted'."""

  def begin(self, run: Run) -> None:
    """Starts to collect what the run logs."""
    name = type(self).__name__
    alike = [id(each) for each in run.schedule.callbacks if type(each) is type(self)]
    place = alike.index(id(self))
    self._name = f"{name}-{place + 1}" if place else name
    self._outbox = Outbox(self, self._name, run)
    run.writer.add(self._outbox)

  def after_steps(self, run: Run) -> None:
    """Starts sending, since the configuration is complete."""
    self._outbox.start()

  def evaluated(self, run: Run, found: Evaluation) -> None:
    """Starts sending, if the configuration is complete."""
    if run.has_begun:
      self._outbox.start()

  def end(self, run: Run, error: BaseException | None) -> None:
    """Sends the rest and closes the record; waits up to 30 s, or 3 s if the run was interrupted."""
    if run.has_begun or not error:
      is_hurried = error is not None and not isinstance(error, Exception)
      run.doing(f"sending the last lines to {self._name}")
      self._outbox.start()
      self._outbox.end(
          FINISHED if error is None else
          INTERRUPTED if is_hurried or isinstance(error, Preempted) else FAILED,
          seconds=3.0 if is_hurried else 30.0)


def require(service: Tracker) -> None:
  """Raises a UsageError if a service's package is not installed."""
  name = type(service).__name__
  if importlib.util.find_spec(name.lower()) is None:
    raise UsageError(f"@{name}() needs its package: pip install 'replicator[{name.lower()}]'")
