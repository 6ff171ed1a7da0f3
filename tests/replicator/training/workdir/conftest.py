"""A workdir to report on, and its page as a reader sees it."""

import html.parser
import json
import math
import pathlib

from replicator.training.workdir import report

import pytest
from PIL import Image

CONFIG = "# Parameters for train:\ntrain.steps = 300\nSNGAN.note = '<b>&'\n"
FACTS = {"command": "python -m experiments.sngan --gin_param='train.steps = 300'",
         "started": "2026-02-03T10:11:12+00:00", "git_commit": None, "strategy": "mirrored",
         "versions": {"python": "3.11.9", "tensorflow": "2.21.0"}, "num_replicas": 2,
         "global_batch_size": 64, "precision": "float32", "steps": 300, "experiment": "sngan"}


@pytest.fixture
def workdir(tmp_path):
  """A workdir that a test may change."""
  return filled(tmp_path)


@pytest.fixture(scope="session")
def page(tmp_path_factory) -> str:
  """The report of that workdir, whose name begins with 'finished'."""
  return report.write_report(filled(tmp_path_factory.mktemp("finished"))).read_text()


def filled(folder: pathlib.Path) -> pathlib.Path:
  """300 steps in 30 s, evaluated every 100 steps, with five pictures."""
  rows = [{"step": 0, "seconds": 0.0, "eval/classifier_frechet_distance": 400.0}]
  for step in range(1, 301):
    row = {"step": step, "seconds": step / 10, "d": 1.0 + math.sin(step), "g": 0.5}
    found = {"eval/classifier_frechet_distance": 400.0 / step} if step % 100 == 0 else {}
    rows.append(row | found)
  write_metrics(folder, rows)
  folder.joinpath("run.json").write_text(json.dumps(FACTS))
  folder.joinpath("config.gin").write_text(CONFIG)
  folder.joinpath("samples").mkdir()
  for step in (0, 75, 150, 225, 300):
    Image.new("RGB", (8, 8), (step % 256, 0, 0)).save(folder / f"samples/step-{step:08d}.png")
  return folder


def write_metrics(workdir: pathlib.Path, rows: list[dict]) -> None:
  workdir.joinpath("metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


class Text(html.parser.HTMLParser):
  """The words of a page, the sources of its pictures, and its tags."""

  def __init__(self, page: str):
    super().__init__()
    self.words, self.images, self.tags = "", [], []
    self._hidden = False
    self.feed(page)

  def handle_starttag(self, tag, attributes):
    self.tags.append(tag)
    self._hidden = tag == "style"
    if tag == "img":
      self.images.append(dict(attributes)["src"])

  def handle_data(self, data):
    self.words += "" if self._hidden else data + " "
