"""Queues a run's logs and sends them to a tracker in a background thread.

Each line is sent once, whatever happens. A resumed run repeats its lines, so lines already in the
record are not sent again. After a rollback, or if a resumed run's settings have changed, lines can
differ: then a new record starts, with all lines. Missing lines are read from the workdir.
"""

import collections
import contextlib
import dataclasses
import hashlib
import json
import pathlib
import secrets
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from replicator import atomic
from replicator.configuration import differences
from replicator.errors import first_line
from replicator.tools.sweeps.trials import RECORD
from replicator.training.run import Run
from replicator.training.workdir import reader
from replicator.training.workdir.writer import Sink

import numpy as np

if TYPE_CHECKING:
  from replicator.tools.trackers.tracker import Tracker

FINISHED, FAILED, INTERRUPTED = "finished", "failed", "interrupted"  # How a run ended.
RETRY_SECONDS = 10.0  # Between a failure and the next attempt.
_BINS = 64
_writing = threading.Lock()  # All trackers of a run write the same `trackers.json`.


@dataclasses.dataclass
class Line:
  """The data that a run logged at a step; each part may be empty.

  Attributes:
    step: the step.
    scalars: "seconds" and all scalars of the step, by name; they may be NaN or infinite.
    images: uint8 `[h, w, 3]`, by name.
    histograms: the counts `[n]` and the edges `[n + 1]` of bins, by name.
    text: texts, by name.
  """

  step: int
  scalars: dict[str, float] = dataclasses.field(default_factory=dict)
  images: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
  histograms: dict[str, tuple[np.ndarray, np.ndarray]] = dataclasses.field(default_factory=dict)
  text: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class TrackedRun:
  """A run whose record a tracker opens.

  The `id` has 16 letters and digits; each record of the run has its own. `name` is the workdir's
  name, `experiment` the program's, and `group` the sweep's, or empty. `config` has the values in
  `config.gin` by name; references are text.
  """

  id: str
  name: str
  experiment: str
  group: str
  workdir: pathlib.Path
  config: dict[str, Any]


class Outbox(Sink):
  """Sink that sends a run's logs to a tracker; all methods except `end` return immediately.

  `name` is the tracker's name in `trackers.json`, which stores the ID of its record, and the step
  and checksum of the last line that was sent.
  """

  def __init__(self, tracker: "Tracker", name: str, run: Run):
    self._tracker, self._name, self._run = tracker, name, run
    self._line: Line | None = None  # Of the current step, until its scalars arrive.
    # A number is a step to which the run has gone back.
    self._queue: collections.deque[Line | int] = collections.deque()
    self._changing, self._news, self._ended = threading.Lock(), threading.Event(), threading.Event()
    self._status = ""  # The status of the ended run.
    self._thread = threading.Thread(target=self._work, daemon=True)
    self._path = run.workdir / "trackers.json"
    self._noted = reader.read_object(self._path).get(name, {})
    self._has = -1  # The last step in the record.
    self._covered = run.step or -1  # Lines up to here are in the workdir; later ones are queued.
    self._expected: tuple[int, str] | None = None  # The last line from an earlier process.
    self._is_first, self._is_open = True, False
    if run.went_back:
      self._queue.append(run.step)

  # ---- Called by the training loop --------------------------------------------------------------

  def start(self) -> None:
    """Starts sending, once `config.gin` is written. Further calls do nothing."""
    if self._thread.ident is None:
      self._thread.start()

  def scalars(self, step: int, values: Mapping[str, float]) -> None:
    """Sends the line of a step."""
    self._at(step).scalars.update(values)
    self._put()

  def images(self, step: int, values: Mapping[str, np.ndarray]) -> None:
    """Sends images with the line of their step."""
    self._at(step).images.update({name: x.copy() for name, x in values.items()})

  def histograms(self, step: int, values: Mapping[str, np.ndarray]) -> None:
    """Sends histograms with the line of their step."""
    self._at(step).histograms.update({name: _counted(x) for name, x in values.items()})

  def text(self, step: int, values: Mapping[str, str]) -> None:
    """Sends texts with the line of their step."""
    self._at(step).text.update(values)

  def take_back(self, step: int) -> None:
    """Drops later lines; if one was already sent, starts a new record."""
    self._line = None
    with self._changing:
      self._queue = collections.deque(each for each in self._queue
                                      if isinstance(each, int) or each.step <= step)
      self._queue.append(step)
    self._news.set()

  def end(self, status: str, seconds: float) -> None:
    """Ends the record with `status`, and waits for that up to `seconds`."""
    self._put()
    self._status = status
    self._ended.set()
    self._news.set()
    self._thread.join(seconds)
    if self._thread.is_alive():
      self._run.say(f"warning: {self._name} is slow, and lacks lines; rerun the same "
                    "command to send them")

  def _at(self, step: int) -> Line:
    if self._line is None or self._line.step != step:
      self._put()
      self._line = Line(step)
    return self._line

  def _put(self) -> None:
    if self._line is not None:
      self._queue.append(self._line)
      self._line = None
      self._news.set()

  # ---- The thread of the tracker ----------------------------------------------------------------

  def _work(self) -> None:
    problem, is_last = "", False
    while not is_last:
      is_last = self._ended.is_set()
      try:
        self._send_all()
        if is_last:
          self._tracker.close(self._status)
          return
        problem = ""
        self._news.wait()
        self._news.clear()
      except Exception as error:
        self._is_open, before = False, problem
        problem = f"{type(error).__name__}: {first_line(error)}"
        if is_last or problem != before:
          self._run.say(f"warning: {self._name} lacks lines ({problem}); "
                        f"{'' if is_last else 'they will be sent later, or '}rerun the same "
                        "command to send them")
        if not is_last:
          self._ended.wait(RETRY_SECONDS)

  def _send_all(self) -> None:
    if not self._is_open:
      self._open()
    while self._queue:
      item = self._queue[0]
      if isinstance(item, Line):
        self._take(item)
      else:
        self._covered, self._expected = min(self._covered, item), None
        if self._has > item:
          self._begin_another()
      with self._changing:
        if self._queue and self._queue[0] is item:
          self._queue.popleft()

  def _take(self, line: Line) -> None:
    if self._expected and line.scalars and line.step >= self._expected[0]:
      expected, self._expected = self._expected, None
      if expected != (line.step, _checksum(line)):
        self._begin_another()
    if line.step > self._has or (line.step == self._has and not line.scalars):
      self._send(line)
    self._covered = max(self._covered, line.step)

  def _send(self, line: Line) -> None:
    self._tracker.send(line)
    self._has = line.step
    if line.scalars:
      self._note(step=line.step, sum=_checksum(line))

  def _begin_another(self) -> None:
    with contextlib.suppress(Exception):
      self._tracker.close(INTERRUPTED)
    self._is_open = False
    self._note(id=secrets.token_hex(8), step=-1, sum="")
    self._open()

  def _open(self) -> None:
    """Opens the record, and sends the lines that it lacks from the workdir."""
    found = reader.read(self._run.workdir)
    if "id" not in self._noted:
      self._note(id=secrets.token_hex(8), step=-1, sum="")
    last = self._tracker.open(self._described(found))
    if last is None:
      last = self._noted["step"]
    if not isinstance(last, int):
      raise TypeError(f"open returned {last!r}, not the last step that the record has, -1 or None")
    if self._is_first and min(last, self._noted["step"]) > self._covered:  # It will come again.
      self._expected = self._noted["step"], self._noted["sum"]
    self._has, self._is_first = last, False
    for line in _lines(found, last, self._covered):
      self._send(line)
    self._is_open = True

  def _described(self, found: reader.Run) -> TrackedRun:
    folder = found.folder.resolve()
    config = {name: repr(value) if differences.references_in(value) else value
              for name, value in differences.values(found.config).items()}
    return TrackedRun(self._noted["id"], folder.name, found.facts.get("experiment", ""),
                      folder.parent.parent.name if (folder / RECORD).exists() else "", folder,
                      config)

  def _note(self, **facts: Any) -> None:
    self._noted.update(facts)
    with _writing, contextlib.suppress(OSError):  # A full disk ends the run elsewhere.
      noted = {**reader.read_object(self._path), self._name: self._noted}
      atomic.write_whole(self._path, json.dumps(noted, indent=2) + "\n")


def _checksum(line: Line) -> str:
  """Returns a checksum of the scalars, except times."""
  known = {name: repr(x) for name, x in line.scalars.items() if name not in reader.TIMES}
  return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]


def _counted(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  try:
    return np.histogram(values, _BINS)
  except ValueError:  # The values are too close together for so many bins.
    return np.array([len(values)]), np.array([values.min(), values.max()])


def _lines(run: reader.Run, after: int, up_to: int) -> Iterator[Line]:
  """Yields the scalars and images in a workdir for steps after `after`, up to `up_to`."""
  from PIL import Image
  rows = {row["step"]: row for row in run.rows}
  images: dict[int, dict[str, pathlib.Path]] = {}
  for name, paths in {"samples": run.samples, **run.images}.items():
    for path in paths:
      if (step := reader.step_of(path)) is not None:
        images.setdefault(step, {})[name] = path
  for step in sorted(step for step in {*rows, *images} if after < step <= up_to):
    yield Line(step, {name: x for name, x in rows.get(step, {}).items() if name != "step"},
               {name: np.asarray(Image.open(path)) for name, path in images.get(step, {}).items()})
