"""Keeps trackers up to date with `metrics.jsonl`, so that they equal it whatever happens.

`metrics.jsonl` is the truth, and the queue. A thread for each tracker reads it, up to the step that
is *settled*: a checkpoint covers it, so that no resumed run takes its lines back. What a tracker
has is never remembered: it is asked, at the start and after every failure, and gets the lines that
it lacks. So a kill between any two calls loses no line and repeats none.

If a tracker has lines all the same that the run took back (of a run that failed after its last
checkpoint, or whose checkpoint was lost), the run gets another id there, and so another record.
"""

import contextlib
import math
import pathlib
import threading
import time
from collections.abc import Callable, Sequence

from replicator.errors import first_line
from replicator.trackers import run_log
from replicator.trackers.tracker import FINISHED, INTERRUPTED, Tracker

END_SECONDS = 30.0  # The longest time that the end of a run waits for its trackers.
HURRIED_SECONDS = 3.0  # The same after a second Ctrl-C.


class Followers:
  """All trackers of a run, each followed by a thread of its own; the methods return at once.

  Args:
    trackers: what `tracker.check` has passed.
    workdir: the folder of the run.
    first_step: the last step whose lines an earlier process has left in the workdir, or -1.
    say: called with a line for the user, in any thread.
  """

  def __init__(self, trackers: Sequence[Tracker], workdir: pathlib.Path, first_step: int,
               say: Callable[[str], None]):
    kinds = [type(tracker).__name__ for tracker in trackers]
    self.names = [f"{kind}-{kinds[:i].count(kind) + 1}" if kind in kinds[:i] else kind
                  for i, kind in enumerate(kinds)]
    ids = run_log.Ids(workdir)
    self._followers = [_Follower(tracker, name, ids, workdir, first_step, say)
                       for tracker, name in zip(trackers, self.names, strict=True)]

  def begin(self) -> None:
    """Begins to follow the run, whose `config.gin` is written; more calls do nothing."""
    for follower in self._followers:
      follower.start()

  def settle(self, step: int | None) -> None:
    """Lets the trackers have the lines up to `step`, which is in a checkpoint; None if none is."""
    for follower in self._followers:
      follower.settle(-1 if step is None else step)

  def take_back(self, step: int) -> None:
    """Makes the trackers forget the lines after `step`, which are gone from `metrics.jsonl`."""
    for follower in self._followers:
      follower.take_back(step)

  def end(self, status: str, hurried: bool = False) -> None:
    """Ends the records of a run that ended so, after all that belongs to it, and waits for it.

    A run that is 'interrupted' will resume, so only its settled lines belong to it.
    """
    if status == FINISHED:  # Nothing may be left to train, but something to send.
      self.begin()
    for follower in self._followers:
      follower.end(status)
    deadline = time.monotonic() + (HURRIED_SECONDS if hurried else END_SECONDS)
    for follower in self._followers:
      follower.wait(deadline - time.monotonic())


class _Follower(threading.Thread):
  """Keeps one tracker up to date. Its thread alone calls the tracker."""

  def __init__(self, tracker: Tracker, name: str, ids: run_log.Ids, workdir: pathlib.Path,
               first_step: int, say: Callable[[str], None]):
    super().__init__(name=name, daemon=True)  # A tracker that hangs does not keep the process.
    self._tracker = tracker
    self._ids = ids
    self._workdir = workdir
    self._say = say
    # What the training says; `_news` guards it.
    self._news = threading.Condition()
    self._settled: float = first_step
    self._status = ""
    self._has_news = True
    # What the thread knows.
    self._sent = -1  # The tracker has the lines up to here.
    self._most = first_step  # Those up to here may be there: the run has not taken them back.
    self._open = ""  # The id of the open record.
    self._log = run_log.Log(workdir, first_step)
    self._problem = ""  # Why it is behind.

  # ---- In the thread of the training ------------------------------------------------------------

  def start(self) -> None:
    if self.ident is None:
      super().start()

  def settle(self, step: int) -> None:
    with self._news:
      if step > self._settled:
        self._settled, self._has_news = step, True
        self._news.notify()

  def take_back(self, step: int) -> None:
    with self._news:
      if step < self._settled:
        self._settled, self._has_news = step, True
        self._ids.renew(self.name)
        self._news.notify()

  def end(self, status: str) -> None:
    with self._news:
      if status != INTERRUPTED:
        self._settled = math.inf
      self._status, self._has_news = status, True
      self._news.notify()

  def wait(self, seconds: float) -> None:
    if self.ident is None:
      return
    self.join(max(0.0, seconds))
    problem = "it is slow" if self.is_alive() else self._problem
    if problem:
      lacks = f"what was logged after step {self._sent}" if self._sent >= 0 else "all"
      self._say(f"warning: {self.name} lacks {lacks} ({problem}); the same command sends it")

  # ---- In the thread of the tracker -------------------------------------------------------------

  def run(self) -> None:
    status = ""
    while not status:
      with self._news:
        self._news.wait_for(lambda: self._has_news)
        settled, status, self._has_news = self._settled, self._status, False
      self._try_to_send(settled, status)
    if self._problem:  # No checkpoint follows, so that it is tried again at once.
      self._try_to_send(settled, status)
    if self._problem:
      with contextlib.suppress(Exception):  # It is known to fail.
        self._tracker.end(INTERRUPTED)

  def _try_to_send(self, settled: float, status: str) -> None:
    try:
      self._send(settled)
      if status:
        self._tracker.end(status)
      if self._problem:
        self._say(f"note: {self.name} has what it missed")
      self._problem = ""
    except Exception as error:
      problem = f"{type(error).__name__}: {first_line(error)}"
      if not (self._problem or status):
        self._say(f"warning: {self.name}: {problem}; the run goes on, and this is tried again")
      self._open, self._problem = "", problem

  def _send(self, settled: float) -> None:
    if self._open != self._ids.of(self.name):
      self._begin()
    for line in self._log.up_to(settled):
      self._most = line.step
      self._tracker.log(line.step, line.scalars, line.picture)
      self._sent = line.step

  def _begin(self) -> None:
    """Opens the record, or a new one if it has lines that the run took back."""
    if self._open:
      self._tracker.end(INTERRUPTED)
    run_id = self._ids.of(self.name)
    last = self._last_of(run_id)
    if last > self._most:
      self._say(f"note: {self.name} has lines up to step {last} that this run does not have any "
                "more; another record begins there")
      self._tracker.end(INTERRUPTED)
      run_id = self._ids.renew(self.name)
      last = self._last_of(run_id)
    self._log, self._sent, self._open = run_log.Log(self._workdir, last), last, run_id

  def _last_of(self, run_id: str) -> int:
    last = self._tracker.begin(run_log.describe(self._workdir, run_id))
    if not isinstance(last, int):
      raise TypeError(f"begin returned {last!r}; it must return the last step that the record has, "
                      "or -1")
    return last
