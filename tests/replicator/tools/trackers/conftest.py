"""A run without a training, and a tracker that keeps everything in memory."""

import json
import pathlib
import types
from collections.abc import Callable

from replicator.tools.trackers.outbox import Line, TrackedRun
from replicator.tools.trackers.tracker import Tracker
from replicator.training.workdir import reader
from replicator.training.workdir.sinks import MetricsFile, SampleFiles
from replicator.training.workdir.writer import Writer

import numpy as np
import pytest

CONFIG = """
train.steps = 40
train.callbacks = [@MLflow()]
Network.widths = (8, %WIDTH)
WIDTH = 16
Network.activation = @relu
deep/Network.name = 'a b'
"""


class Workdir:
  """The folder of a run, whose configuration is written."""

  def __init__(self, folder: pathlib.Path):
    self.folder = folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.gin").write_text(CONFIG)
    (folder / "run.json").write_text(json.dumps({"experiment": "sngan"}))

  @property
  def lines(self) -> dict[int, dict[str, float]]:
    """The lines of `metrics.jsonl`, by step."""
    return {row.pop("step"): row for row in reader.read(self.folder).rows}


class Process:
  """A process of a run, from `step` on: what trackers see of it, and what it does.

  It logs every second step, with a picture at the multiples of 10. All processes log the same, but
  for a loss that is given.
  """

  def __init__(self, workdir: Workdir, *trackers: Tracker, step: int = 0, went_back: bool = False):
    self.workdir, self.step, self.trackers = workdir.folder, step, trackers
    self.has_begun, self.went_back = False, went_back
    self.said: list[str] = []
    self.say, self.doing = self.said.append, lambda what: None
    self.schedule = types.SimpleNamespace(callbacks=trackers)
    self.writer = Writer(seconds=lambda: self.step / 4)
    for sink in (MetricsFile(self.workdir), SampleFiles(self.workdir)):
      sink.take_back(step or -1)
      self.writer.add(sink)
    for tracker in trackers:
      tracker.begin(self)

  def log(self, first: int, last: int, loss: float = 0.5) -> None:
    """Logs the even steps in `[first, last]`."""
    for self.step in range(first, last + 1, 2):
      self.writer.scalars(self.step, {"loss": loss, "grad_norm/critic": 1 / (self.step + 1)})
      if self.step % 10 == 0:
        self.writer.scalars(self.step, {"eval/score": self.step / 8})
        self.writer.images(self.step, {"samples": np.full([4, 4, 3], self.step, np.uint8)})
      self.has_begun = True
      for tracker in self.trackers:
        tracker.after_steps(self)
      self.writer.flush()

  def roll_back(self, step: int) -> None:
    """Goes back to a step."""
    self.step = step
    self.writer.take_back(step)

  def end(self, error: BaseException | None = None) -> None:
    """Ends, as a good run or by an error."""
    for tracker in self.trackers:
      tracker.end(self, error)


class Memory(Tracker):
  """A service that outlives the processes of a run.

  `on_call` is called with the name of a method before the method does anything, and again after it.
  """

  def __init__(self):
    self.records: dict[str, dict[int, dict[str, float]]] = {}  # By id, in the order of their begin.
    self.runs: dict[str, TrackedRun] = {}
    self.images: dict[int, dict[str, np.ndarray]] = {}
    self.sent: list[Line] = []
    self.status: dict[str, str] = {}
    self.on_call: Callable[[str], None] = lambda name: None

  def open(self, run: TrackedRun) -> int:
    self.on_call("open")
    self.id = run.id
    self.runs[run.id] = run
    self.status[run.id] = "running"
    lines = self.records.setdefault(run.id, {})
    self.on_call("open")
    return max(lines, default=-1)

  def send(self, line: Line) -> None:
    self.on_call("send")
    lines = self.records[self.id]
    self.sent.append(line)
    if line.scalars:
      assert line.step > max(lines, default=-1)  # Each comes once, and in order.
      lines[line.step] = line.scalars
    if line.images:
      self.images[line.step] = line.images
    self.on_call("send")

  def close(self, status: str) -> None:
    self.on_call("close")
    self.status[self.id] = status
    self.on_call("close")


@pytest.fixture
def workdir(tmp_path):
  return Workdir(tmp_path / "digits")
