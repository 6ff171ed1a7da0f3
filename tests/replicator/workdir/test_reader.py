"""What the files of a workdir say, complete or not."""

import json
import math

import pytest

from replicator.workdir import reader


def write(workdir, rows: list[dict], **facts: object) -> reader.Run:
  (workdir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  (workdir / "run.json").write_text(json.dumps(facts))
  return reader.read(workdir)


@pytest.mark.parametrize("values, look", [
    ([math.nan, 1.0], "good"), ([math.inf, math.nan, 1.0], "good"), ([1.0, 0.0], "good"),
    ([1.0, math.nan], "bad"), ([1.0, -math.inf], "bad")])
def test_the_last_values_say_whether_a_run_is_lost(values, look, tmp_path):
  run = write(tmp_path, [{"step": i + 1, "d": value} for i, value in enumerate(values)])
  assert run.status()[0] == look


@pytest.mark.parametrize("steps, ended, look", [
    (2, "", "good"), (1, "", "good"), (3, "", "warn"), (None, "interrupted", "good"),
    ("many", "", "good"), (2, "failed: of the user", "bad"), (3, "failed", "bad")])
def test_how_a_run_went_is_a_look(steps, ended, look, tmp_path):
  run = write(tmp_path, [{"step": 2, "d": 1.0}], steps=steps, ended=ended)
  assert run.status()[0] == look


def test_series_are_the_numbers_by_name(tmp_path):
  run = write(tmp_path, [{"step": 1, "seconds": 0.5, "d": 2, "note": "words", "list": [1.0]},
                         {"step": 3, "seconds": 0.9, "eval/x": 4.0, "d": -1.5}])
  found = {name: [each.tolist() for each in points] for name, points in run.series().items()}
  assert found == {"eval/x": [[3.0], [4.0]], "d": [[1.0, 3.0], [2.0, -1.5]]}
  assert list(found) == ["eval/x", "d"]


def test_what_cannot_be_read_is_counted_and_left_out(tmp_path):
  write(tmp_path, [{"step": 1, "d": 1.0}])
  with (tmp_path / "metrics.jsonl").open("ab") as file:
    file.write(b'\xff\n[]\n{"d": 1.0}\n{"step": "2"}\n')
  (tmp_path / "run.json").write_text("[1, 2]")
  run = reader.read(tmp_path)
  assert (len(run.rows), run.num_corrupt, run.facts) == (1, 4, {})


@pytest.mark.parametrize("name, tag, kind", [
    ("loss", "train/loss", "training"), ("eval/x", "eval/x", "evaluation"),
    ("evaluated", "train/evaluated", "training"), ("sigma/d", "sigma/d", "training")])
def test_a_metric_has_a_tag_and_a_kind(name, tag, kind):
  assert (reader.tensorboard_tag(name), reader.kind(name)) == (tag, kind)
