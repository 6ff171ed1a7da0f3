"""A run without a training, and a tracker that keeps everything in memory."""

import json
import pathlib
from collections.abc import Callable, Mapping

from replicator import atomic
from replicator.tools.trackers.tracker import TrackedRun

import pytest

CONFIG = """
train.steps = 40
train.trackers = [@MLflow()]
Network.widths = (8, %WIDTH)
WIDTH = 16
Network.activation = @relu
deep/Network.name = 'a b'
"""


class Workdir:
  """The files that trackers read, written as a run writes them; a run logs every second step."""

  def __init__(self, folder: pathlib.Path):
    self.folder = folder
    (folder / "samples").mkdir(parents=True)
    (folder / "config.gin").write_text(CONFIG)
    (folder / "run.json").write_text(json.dumps({"experiment": "sngan"}))
    self.lines: dict[int, dict[str, float]] = {}

  def log(self, first: int, last: int, loss: float = 0.5) -> None:
    """Logs the even steps in `[first, last]`, with a picture at the multiples of 10."""
    for step in range(first, last + 1, 2):
      self.lines[step] = {"seconds": step / 4, "loss": loss, "grad_norm/critic": 1 / (step + 1)}
      if step % 10 == 0:
        self.lines[step]["eval/score"] = step / 8
        self.picture(step)
      with (self.folder / "metrics.jsonl").open("a") as file:
        file.write(self._text(step))

  def picture(self, step: int) -> None:
    from PIL import Image
    Image.new("RGB", (4, 4), (step, 0, 0)).save(self.folder / "samples" / f"step-{step:08d}.png")

  def take_back(self, step: int) -> None:
    """Removes what was logged after `step`, as a resumed run does."""
    self.lines = {s: line for s, line in self.lines.items() if s <= step}
    for path in (self.folder / "samples").glob("*.png"):
      if int(path.stem.removeprefix("step-")) > step:
        path.unlink()
    atomic.write_whole(self.folder / "metrics.jsonl", "".join(map(self._text, self.lines)))

  def _text(self, step: int) -> str:
    return json.dumps({"step": step, **self.lines[step]}) + "\n"


class Memory:
  """A service that outlives the processes of a run.

  `on_call` is called with the name of a method before the method does anything, and again after it.
  """

  def __init__(self):
    self.records: dict[str, dict[int, dict[str, float]]] = {}  # By id, in the order of their begin.
    self.runs: dict[str, TrackedRun] = {}
    self.pictures: dict[int, bytes] = {}
    self.status: dict[str, str] = {}
    self.on_call: Callable[[str], None] = lambda name: None

  def begin(self, run: TrackedRun) -> int:
    self.on_call("begin")
    self.id = run.id
    self.runs[run.id] = run
    self.status[run.id] = "running"
    lines = self.records.setdefault(run.id, {})
    self.on_call("begin")
    return max(lines, default=-1)

  def log(self, step: int, scalars: Mapping[str, float], picture: pathlib.Path | None) -> None:
    self.on_call("log")
    lines = self.records[self.id]
    assert step > max(lines, default=-1)  # Each comes once, and in order.
    lines[step] = dict(scalars)
    if picture:
      self.pictures[step] = picture.read_bytes()
    self.on_call("log")

  def end(self, status: str) -> None:
    self.on_call("end")
    self.status[self.id] = status
    self.on_call("end")


@pytest.fixture
def workdir(tmp_path):
  return Workdir(tmp_path / "digits")
