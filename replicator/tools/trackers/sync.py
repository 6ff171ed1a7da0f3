"""Sends each line of `metrics.jsonl` to every tracker exactly once.

A line is sent when a checkpoint covers it, so that no resumed run takes it back. A tracker is asked
what it has, at the start and after every failure. A run whose sent lines are taken back all the
same, by this process or before it began, gets another id, and so another record.
"""

import contextlib
import json
import math
import pathlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from replicator import atomic
from replicator.configuration import differences
from replicator.errors import first_line
from replicator.tools.sweeps.trials import RECORD
from replicator.tools.trackers.tracker import FAILED, FINISHED, INTERRUPTED, TrackedRun, Tracker
from replicator.training.workdir import reader


class Followers:
  """All trackers of a run, each with a thread of its own; the methods return at once.

  `first_step` is the last step whose lines an earlier process has left in the workdir, or -1;
  `say` is called with a line for the user, in any thread.
  """

  def __init__(self, trackers: Sequence[Tracker], workdir: pathlib.Path, first_step: int,
               say: Callable[[str], None]):
    kinds = [type(tracker).__name__ for tracker in trackers]
    self.names = [f"{kind}-{kinds[:i].count(kind) + 1}" if kind in kinds[:i] else kind
                  for i, kind in enumerate(kinds)]
    self._workdir, self._first_step, self._say = workdir, first_step, say
    self._ids_written = threading.Lock()
    # The ids, the last step that no resume takes back, and how the run ended: replaced as a whole.
    self._now: tuple[dict[str, str], float, str] = {}, first_step, ""
    self._news = [threading.Event() for _ in trackers]
    self._threads = [threading.Thread(target=self._follow, args=arguments, daemon=True)
                     for arguments in zip(trackers, self.names, self._news, strict=True)]

  def begin(self) -> None:
    """Begins the records of the run, whose `config.gin` is written; more calls do nothing."""
    if self.names and not self._now[0]:
      self._tell(self._ids(), self._now[1])
      for thread in self._threads:
        thread.start()

  def settle(self, step: int | None) -> None:
    """Sends the lines up to the last checkpoint, if any; those after it have been taken back."""
    ids, settled, _ = self._now
    if step is not None and step != settled:
      self._tell(self._ids(renew=self.names) if ids and step < settled else ids, step)

  def end(self, status: str, seconds: float = 30.0) -> None:
    """Ends the records of a run that ended so, and waits for that at most so long.

    They have all lines, those of an interrupted run the settled ones. If a failed run resumes, it
    begins others.
    """
    if status == FINISHED:  # Nothing may be left to train, but something to send.
      self.begin()
    ids, settled, _ = self._now
    if ids and status == FAILED:
      self._ids(renew=self.names)
    self._tell(ids, settled if status == INTERRUPTED else math.inf, status)
    deadline = time.monotonic() + seconds
    for name, thread in zip(self.names, self._threads, strict=True):
      if thread.is_alive():
        thread.join(max(0.0, deadline - time.monotonic()))
      if thread.is_alive():
        self._say(f"warning: {name} is slow, and lacks lines; the same command sends them")

  def _tell(self, ids: dict[str, str], settled: float, status: str = "") -> None:
    self._now = ids, settled, status
    for news in self._news:
      news.set()

  def _ids(self, renew: Sequence[str] = ()) -> dict[str, str]:
    """The run's id in each tracker, as `trackers.json` keeps it; new ones for those to renew."""
    path = self._workdir / "trackers.json"
    with self._ids_written:
      known = reader.read_object(path)
      ids = {name: known.get(name, "") if name not in renew else "" for name in self.names}
      ids = {name: each or secrets.token_hex(8) for name, each in ids.items()}
      with contextlib.suppress(OSError):  # A disk that is full ends the run by itself.
        atomic.write_whole(path, json.dumps({**known, **ids}, indent=2) + "\n")
    return ids

  def _follow(self, tracker: Tracker, name: str, news: threading.Event) -> None:
    """Sends lines to one tracker until the run has ended; only this thread calls the tracker."""
    status, problem, record, sent = "", "", "", -1
    known, renewed = "", ""  # The id that the workdir had at first, and the one in its place.
    while not status:
      news.wait()
      news.clear()
      ids, settled, status = self._now
      try:
        run_id = renewed if renewed and ids[name] == known else ids[name]
        if record != run_id:
          sent, record = tracker.begin(_described(self._workdir, run_id)), run_id
          if not known and isinstance(sent, int) and sent > self._first_step:
            # An earlier process has sent lines that this one has taken back.
            tracker.end(INTERRUPTED)
            known, renewed = run_id, self._ids(renew=[name])[name]
            sent, record = tracker.begin(_described(self._workdir, renewed)), renewed
          known = known or run_id
        if not isinstance(sent, int):
          raise TypeError(f"begin returned {sent!r}, not the last step that the record has, or -1")
        for step, scalars, picture in _lines(self._workdir, sent, settled):
          tracker.log(step, scalars, picture)
          sent = step
        if status:
          tracker.end(status)
        problem = ""
      except Exception as error:
        record, before, problem = "", problem, f"{type(error).__name__}: {first_line(error)}"
        if status or problem != before:
          self._say(f"warning: {name} lacks lines ({problem}); a later checkpoint or the same "
                    "command sends them")


def _described(workdir: pathlib.Path, run_id: str) -> TrackedRun:
  run, folder = reader.read(workdir), workdir.resolve()
  config = {name: repr(value) if differences.references_in(value) else value
            for name, value in differences.values(run.config).items()}
  group = folder.parent.parent.name if (folder / RECORD).exists() else ""
  return TrackedRun(run_id, folder.name, run.facts.get("experiment", ""), group, folder, config)


def _lines(workdir: pathlib.Path, after: int, up_to: float) -> Iterator[tuple]:
  """The scalars, the picture or both of each step after one, up to another."""
  run = reader.read(workdir)
  rows = {row.pop("step"): row for row in run.rows}
  pictures = {int(path.stem[5:]): path for path in run.samples if path.stem[5:].isdecimal()}
  for step in sorted(step for step in {*rows, *pictures} if after < step <= up_to):
    yield step, rows.get(step, {}), pictures.get(step)
