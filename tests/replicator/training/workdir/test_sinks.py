"""The files that hold what a run logs, written without a training."""

import json
import math

from replicator.training.workdir import reader
from replicator.training.workdir.sinks import MetricsFile, SampleFiles, TensorBoard
from replicator.training.workdir.writer import Writer

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from tensorboard.plugins.hparams import metadata


def opened(workdir, step: int = -1) -> Writer:
  """A writer as the loop makes it for a run that goes on from `step`."""
  workdir.mkdir(parents=True, exist_ok=True)
  sinks = MetricsFile(workdir), SampleFiles(workdir), TensorBoard(workdir)
  for sink in sinks:
    sink.take_back(step)
  return Writer(sinks, lambda: 1.23456)


def log(writer: Writer, *steps: int) -> None:
  for step in steps:
    writer.scalars(step, {"loss": 1.0 / (1 + step)})
    writer.flush()


def lines(workdir) -> list[str]:
  return (workdir / "metrics.jsonl").read_text().splitlines()


def steps(workdir) -> list[int]:
  return [json.loads(line)["step"] for line in lines(workdir)]


def events_of(workdir) -> list[tuple[int, tf.compat.v1.Summary.Value]]:
  """What TensorBoard shows: steps and values."""
  return [(event.step, value) for file in workdir.glob("events.out.tfevents.*")
          for record in tf.data.TFRecordDataset(str(file))
          for event in [tf.compat.v1.Event.FromString(record.numpy())]
          for value in event.summary.value]


def test_a_line_is_step_seconds_and_numbers_in_their_order_with_all_digits(tmp_path):
  writer = opened(tmp_path / "deep" / "run")
  writer.scalars(20, {"d": 0.1 + 0.2, "a": 2.0})
  writer.scalars(20, {"eval/x": 1e-300})
  writer.flush()
  writer.flush()
  assert lines(tmp_path / "deep" / "run") == [
      '{"step": 20, "seconds": 1.235, "d": 0.30000000000000004, "a": 2.0, "eval/x": 1e-300}']


def test_numbers_that_are_not_finite_are_words_of_strict_json(tmp_path):
  writer = opened(tmp_path)
  writer.scalars(1, {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.0})
  writer.flush()
  (line,) = lines(tmp_path)
  row = json.loads(line, parse_constant=pytest.fail)  # Called for what is not JSON.
  assert row == {"step": 1, "seconds": 1.235, "a": "NaN", "b": "Infinity", "c": "-Infinity",
                 "d": 1.0}
  (read,) = reader.read(tmp_path).rows
  assert math.isnan(read["a"]) and (read["b"], read["c"]) == (math.inf, -math.inf)


def test_tensorboard_gets_hyperparameters_of_each_kind(tmp_path):
  opened(tmp_path)
  TensorBoard(tmp_path).hyperparameters({"train.seed": 3, "adam.learning_rate": 2e-4,
                                         "SNGAN.conditional": True, "SNGAN.loss": "@hinge"})
  (content,) = [value.metadata.plugin_data.content for _, value in events_of(tmp_path)
                if value.metadata.plugin_data.plugin_name == "hparams"]
  found = metadata.parse_session_start_info_plugin_data(content).hparams
  assert {name: getattr(value, value.WhichOneof("kind")) for name, value in found.items()} == {
      "train.seed": 3.0, "adam.learning_rate": 2e-4, "SNGAN.conditional": True,
      "SNGAN.loss": "@hinge"}


def test_tensorboard_gets_everything_at_its_step(tmp_path):
  writer = opened(tmp_path)
  log(writer, 1, 2)
  pixels = np.random.default_rng(0).integers(0, 256, [5, 7, 3], np.uint8)
  writer.images(2, {"samples": pixels, "codes/first": np.zeros([2, 2, 3], np.uint8)})
  writer.histograms(2, {"weights": [[1.0, 2.0], [2.0, math.nan]], "empty": [math.nan]})
  writer.text(2, {"note": "a line"})
  with Image.open(tmp_path / "samples" / "step-00000002.png") as image:
    assert image.format == "PNG"
    np.testing.assert_array_equal(np.asarray(image), pixels)
  assert (tmp_path / "samples" / "codes" / "first" / "step-00000002.png").exists()
  writer.scalars(3, {"loss": 0.25, "eval/x": 1e40})
  writer.flush()  # Writes out what is there.
  events = [(step, value.tag, tf.make_ndarray(value.tensor)) for step, value in events_of(tmp_path)]
  assert [float(x) for _, tag, x in events if tag == "eval/x"] == [math.inf]
  assert [(step, round(float(x), 6)) for step, tag, x in events if tag == "train/loss"] == [
      (1, 0.5), (2, 0.333333), (3, 0.25)]
  assert {(step, tag) for step, tag, _ in events if step == 2} == {
      (2, "train/loss"), (2, "samples"), (2, "codes/first"), (2, "weights"), (2, "note")}
  (histogram,) = (x for _, tag, x in events if tag == "weights")
  assert histogram[:, 2].sum() == 3  # The NaN is left out.


@pytest.mark.parametrize("cut", [1, 5])  # The newline, or a part of the line.
def test_a_line_that_a_crash_left_incomplete_is_removed(cut, tmp_path):
  log(opened(tmp_path), 1, 2)
  whole, metrics = lines(tmp_path), tmp_path / "metrics.jsonl"
  metrics.write_text(metrics.read_text()[:-cut])
  first_step = 2 if cut == 1 else 1
  log(opened(tmp_path, first_step), 3)
  assert lines(tmp_path)[:-1] == whole[:first_step]
  assert steps(tmp_path)[-1] == 3


@pytest.mark.parametrize("first_step, kept", [(-1, []), (5, [0, 5]), (10, [0, 5, 10])])
def test_what_came_after_the_restored_step_is_removed_but_not_what_is_the_users(
    first_step, kept, tmp_path):
  writer = opened(tmp_path)
  for step in (0, 5, 10):
    log(writer, step)
    writer.images(step, {"samples": np.zeros([2, 2]), "other": np.zeros([2, 2])})
  own = {"best.png", "step-00000010 brighter.png", "step-last.png"}
  for name in own:
    (tmp_path / "samples" / name).touch()
  before = lines(tmp_path)
  opened(tmp_path, first_step)
  assert lines(tmp_path) == before[:len(kept)] and steps(tmp_path) == kept
  pictures = {f"step-{step:08d}.png" for step in kept}
  assert {path.name for path in (tmp_path / "samples").glob("*.png")} == own | pictures
  assert {path.name for path in (tmp_path / "samples" / "other").iterdir()} == pictures
