"""Curves of runs: what is drawn, and what is not there."""

import json

from benchmarks import curves

import numpy as np
import pytest
from absl.testing import flagsaver
from PIL import Image


def write_run(folder, values):
  folder.mkdir()
  (folder / "metrics.jsonl").write_text("".join(
      json.dumps({"step": step, "seconds": 60.0 * step, "loss": value}) + "\n"
      for step, value in enumerate(values)))
  return str(folder)


@pytest.fixture
def drawn(tmp_path):
  """A function: draws the curves of some arguments; returns the colors of the picture."""
  curves.FLAGS.mark_as_parsed()
  output = str(tmp_path / "curves.png")

  def draw(*arguments, of="loss"):
    with flagsaver.flagsaver(of=[of], output=output):
      curves.main(["curves", *arguments])
    return {color for _, color in Image.open(output).convert("RGB").getcolors(10 ** 6)}
  return draw


BLUE, ORANGE = (31, 119, 180), (255, 127, 14)


def test_runs_of_one_name_have_one_color(drawn, tmp_path):
  first, second = (write_run(tmp_path / f"seed={i}", [3.0, i, i / 2]) for i in range(2))
  assert {BLUE, ORANGE} & drawn(f"a={first}", f"a={second}") == {BLUE}
  assert {BLUE, ORANGE} <= drawn(first, f"b={second}")


def test_a_shade_spans_from_the_least_to_the_greatest_value_over_any_scalar(drawn, tmp_path):
  (tmp_path / "run").mkdir()
  (tmp_path / "run" / "metrics.jsonl").write_text("".join(
      json.dumps({"step": step, "seconds": 1.0, "eval/return": 2.0, "eval/return_min": 1.0,
                  "eval/return_max": 4.0, "eval/environment_steps": 100 * step}) + "\n"
      for step in range(3)))
  shade = tuple(round(255 + 0.12 * (part - 255)) for part in BLUE)
  with flagsaver.flagsaver(by="eval/environment_steps"):
    found = drawn(str(tmp_path / "run"), of="eval/return")
  assert any(np.allclose(color, shade, atol=1) for color in found)


def test_what_is_not_there_is_named(drawn, tmp_path):
  run = write_run(tmp_path / "run", [1.0])
  with pytest.raises(SystemExit, match=r"error: .*has no los\. Did you mean 'loss'"):
    drawn(run, of="los")
  with pytest.raises(SystemExit, match="no such folder"):
    drawn("a=nowhere")
  with pytest.raises(SystemExit, match="nothing to draw"):
    drawn()
