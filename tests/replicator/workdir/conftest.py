"""A workdir to report on."""

import json
import math
import pathlib

import pytest
from PIL import Image

from replicator.workdir import report
from tests.replicator.workdir.finished_run import CONFIG, FACTS, write_metrics


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
    row = {"step": step, "seconds": step / 10, "d": 1.0 + math.sin(step), "g": 0.5,
           "data_wait": 0.013}
    found = {"eval/classifier_frechet_distance": 400.0 / step} if step % 100 == 0 else {}
    rows.append(row | found)
  write_metrics(folder, rows)
  folder.joinpath("run.json").write_text(json.dumps(FACTS))
  folder.joinpath("config.gin").write_text(CONFIG)
  folder.joinpath("samples").mkdir()
  for step in (0, 75, 150, 225, 300):
    Image.new("RGB", (8, 8), (step % 256, 0, 0)).save(folder / f"samples/step-{step:08d}.png")
  return folder
