"""A workdir to report on."""

import json
import math

import pytest
from PIL import Image

from tests.replicator.workdir.finished_run import CONFIG, FACTS, write_metrics


@pytest.fixture
def workdir(tmp_path):
  """300 steps in 30 s, evaluated every 100 steps, with five pictures."""
  rows = [{"step": 0, "seconds": 0.0, "eval/classifier_frechet_distance": 400.0}]
  for step in range(1, 301):
    row = {"step": step, "seconds": step / 10, "d": 1.0 + math.sin(step), "g": 0.5,
           "data_wait": 0.013}
    found = {"eval/classifier_frechet_distance": 400.0 / step} if step % 100 == 0 else {}
    rows.append(row | found)
  write_metrics(tmp_path, rows)
  tmp_path.joinpath("run.json").write_text(json.dumps(FACTS))
  tmp_path.joinpath("config.gin").write_text(CONFIG)
  tmp_path.joinpath("samples").mkdir()
  for step in (0, 75, 150, 225, 300):
    Image.new("RGB", (8, 8), (step % 256, 0, 0)).save(tmp_path / f"samples/step-{step:08d}.png")
  return tmp_path
