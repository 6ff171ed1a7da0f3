"""The files of a workdir, written without a training."""

import json
import math
import os
import re
import sys

import gin
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from replicator.app import config
from replicator.configuration.statements import RECORD_HEADER
from replicator.workdir import provenance, reader, writer
from replicator.workdir.writer import WorkdirWriter
from tests.replicator.console.test_status import Clock

FACTS = {"strategy": "mirrored", "num_replicas": 2, "seed": 0}


def lines(workdir) -> list[str]:
  return (workdir / "metrics.jsonl").read_text().splitlines()


def steps(workdir) -> list[int]:
  return [json.loads(line)["step"] for line in lines(workdir)]


def facts(workdir) -> dict:
  return json.loads((workdir / "run.json").read_text())


def log(writer: WorkdirWriter, *steps: int) -> None:
  for step in steps:
    writer.metrics(step, step / 10, {"loss": 1.0 / (1 + step)})


def events_of(workdir) -> list:
  """The values that TensorBoard shows."""
  return [value for file in workdir.glob("events.out.tfevents.*")
          for event in tf.data.TFRecordDataset(str(file))
          for value in tf.compat.v1.Event.FromString(event.numpy()).summary.value]


# ---- Metrics ------------------------------------------------------------------------------------


def test_a_line_is_step_seconds_and_numbers_in_their_order_with_all_digits(tmp_path):
  writer = WorkdirWriter(tmp_path / "deep" / "run", FACTS)
  writer.metrics(20, 1.23456, {"d": 0.1 + 0.2, "a": 2.0, "eval/x": 1e-300})
  assert lines(tmp_path / "deep" / "run") == [
      '{"step": 20, "seconds": 1.235, "d": 0.30000000000000004, "a": 2.0, "eval/x": 1e-300}']


def test_numbers_that_are_not_finite_are_words_of_strict_json(tmp_path):
  values = {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.0}
  WorkdirWriter(tmp_path, FACTS).metrics(1, 0.0, values)
  (line,) = lines(tmp_path)
  row = json.loads(line, parse_constant=pytest.fail)  # Called for what is not JSON.
  assert row == {"step": 1, "seconds": 0.0, "a": "NaN", "b": "Infinity", "c": "-Infinity", "d": 1.0}
  (read,) = reader.read(tmp_path).rows
  assert math.isnan(read["a"]) and (read["b"], read["c"]) == (math.inf, -math.inf)


def test_tensorboard_gets_the_same_scalars_and_the_picture(tmp_path):
  record = WorkdirWriter(tmp_path, FACTS)
  log(record, 1, 2)
  pixels = np.random.default_rng(0).integers(0, 256, [5, 7, 3], np.uint8)
  record.picture(2, pixels)
  with Image.open(tmp_path / "samples" / "step-00000002.png") as image:
    assert image.format == "PNG"
    np.testing.assert_array_equal(np.asarray(image), pixels)
  record.metrics(3, 0.3, {"loss": 0.25, "eval/x": 1e40})  # Writes out what is there.
  events = events_of(tmp_path)
  assert [tf.make_ndarray(v.tensor) for v in events if v.tag == "eval/x"] == [math.inf]
  scalars = [float(tf.make_ndarray(v.tensor)) for v in events if v.tag == "train/loss"]
  np.testing.assert_allclose(scalars, [1 / 2, 1 / 3, 1 / 4], rtol=1e-6)
  assert [v.tag for v in events].count("samples") == 1


@pytest.mark.parametrize("cut", [1, 5])  # The newline, or a part of the line.
def test_a_line_that_a_crash_left_incomplete_is_removed(cut, tmp_path):
  log(WorkdirWriter(tmp_path, FACTS), 1, 2)
  whole, metrics = lines(tmp_path), tmp_path / "metrics.jsonl"
  metrics.write_text(metrics.read_text()[:-cut])
  first_step = 2 if cut == 1 else 1
  log(WorkdirWriter(tmp_path, FACTS, first_step), 3)
  assert lines(tmp_path)[:-1] == whole[:first_step]
  assert steps(tmp_path)[-1] == 3


@pytest.mark.parametrize("first_step, kept", [(0, []), (5, [0, 5]), (10, [0, 5, 10])])
def test_what_came_after_the_restored_step_is_removed_but_not_what_is_the_users(
    first_step, kept, tmp_path):
  writer = WorkdirWriter(tmp_path, FACTS)
  log(writer, 0, 5, 10)
  for step in (0, 5, 10):
    writer.picture(step, np.zeros([2, 2, 3], np.uint8))
  own = {"best.png", "step-00000010 brighter.png", "step-last.png"}
  for name in own:
    (tmp_path / "samples" / name).touch()
  before = lines(tmp_path)
  WorkdirWriter(tmp_path, FACTS, first_step)
  assert lines(tmp_path) == before[:len(kept)] and steps(tmp_path) == kept
  assert {path.name for path in (tmp_path / "samples").iterdir()} == own | {
      f"step-{step:08d}.png" for step in kept}


# ---- The report ---------------------------------------------------------------------------------


def test_reports_take_a_hundredth_of_the_time(tmp_path, monkeypatch):
  record, clock, drawn = WorkdirWriter(tmp_path, FACTS), Clock(), []

  def draw(folder):
    clock.now += 1
    drawn.append((clock.now, facts(folder).get("ended")))
    if len(drawn) == 2:
      raise ZeroDivisionError("again")

  monkeypatch.setattr(writer, "write_report", draw)
  monkeypatch.setattr(writer.time, "monotonic", clock)
  begun, said = clock.now, []
  for _ in range(500):
    said.append(record.report())
    clock.now += 1
  assert drawn[0] == (begun + 1, None)
  assert len(drawn) == 5 and min(np.diff([time for time, _ in drawn])) >= 100
  # One that fails is a line, and is not tried again at every call.
  assert list(filter(None, said)) == [
      "warning: the report cannot be written (ZeroDivisionError: again)"]
  assert record.report("interrupted") == ""  # However soon.
  assert drawn[5][1] == "interrupted"
  monkeypatch.setattr(record, "note", lambda name, fact: 1 / 0)  # A full disk.
  assert "cannot be written" in record.report("")


# ---- Facts --------------------------------------------------------------------------------------


def test_run_json_has_everything_that_a_repeated_run_needs(tmp_path, monkeypatch):
  monkeypatch.setattr("sys.argv", ["program.py", "--gin_param=a.b = 'c d'"])
  monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)
  monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
  WorkdirWriter(tmp_path, FACTS)
  said = facts(tmp_path)
  assert FACTS.items() <= said.items()
  assert said["resumed"] == []
  assert said["command"].startswith("python ")
  assert said["command"].endswith(""" '--gin_param=a.b = '"'"'c d'"'"''""")  # As a shell reads it.
  assert said["argv"] == ["--gin_param=a.b = 'c d'"] and said["working_directory"] == os.getcwd()
  assert said["program_file"] == os.path.abspath(__file__)
  assert said["environment"]["XLA_FLAGS"] == "--xla_cpu_enable_fast_math=false"
  assert said["versions"]["tensorflow"] == tf.__version__
  assert {"replicator", "gin-config"} < set(said["versions"])
  assert said["machine"]["cores"] >= 1 and said["machine"]["processor"]
  assert len(said["machine"]["devices"]) >= 8 and "CPU" not in said["machine"]["accelerators"]
  assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", said["started"])
  assert said["git_commit"] is None or re.fullmatch(r"[0-9a-f]{40}\+?", said["git_commit"])


def test_changes_of_the_code_are_kept_also_those_of_a_resumed_run(tmp_path, monkeypatch):
  def record(diff: bytes, first_step: int) -> str:
    code = provenance.Code("c0ffee+", diff)
    monkeypatch.setattr(provenance, "code_of", lambda file: code)
    WorkdirWriter(tmp_path, FACTS, first_step)
    return facts(tmp_path)["git_diff"]

  assert record(b"one", 0) == "changes.diff"
  assert record(b"one", 5) == "changes.diff"
  assert record(b"two", 10) == "changes-2.diff"
  assert [(tmp_path / name).read_bytes() for name in ("changes.diff", "changes-2.diff")] == [
      b"one", b"two"]
  assert facts(tmp_path)["resumed"][1]["before"] == {"git_diff": "changes.diff"}
  assert record(b"three", 0) == "changes.diff"  # Begun again, in place of the first.
  assert (tmp_path / "changes.diff").read_bytes() == b"three"


def test_a_resumed_run_says_that_its_code_is_another(tmp_path, monkeypatch):
  def lines(commit: str, keras: str, first_step: int) -> list[str]:
    monkeypatch.setattr(provenance, "code_of", lambda file: provenance.Code(commit))
    monkeypatch.setattr(provenance, "versions", lambda: {"numpy": "2.1", "keras": keras})
    return [line for line in WorkdirWriter(tmp_path, FACTS, first_step).config()
            if line.startswith("changed: ")]

  assert lines("c0ffee", "3.12", 0) == lines("c0ffee", "3.12", 5) == []
  assert lines("decade", "3.15", 10) == [
      "changed: git_commit = decade, was c0ffee", "changed: version of keras = 3.15, was 3.12"]
  assert lines("decade", "3.15", 15) == []
  (tmp_path / "run.json").unlink()  # Checkpoints alone were copied here.
  assert lines("c0ffee", "3.15", 20) == []
  assert lines("decade", "3.15", 25) == ["changed: git_commit = decade, was c0ffee"]


def test_a_resumed_run_says_so_and_keeps_its_notes(tmp_path):
  record = WorkdirWriter(tmp_path, FACTS)
  for method, is_new in (("by ear", True), ("by ear", False), ("by eye", True)):
    assert record.note("evaluation", method) == is_new
  started = facts(tmp_path)["started"]
  WorkdirWriter(tmp_path, {**FACTS, "num_replicas": 4, "steps": 20}, 10)
  WorkdirWriter(tmp_path, {**FACTS, "num_replicas": 4, "steps": 20}, 15)
  said = facts(tmp_path)
  assert (said["num_replicas"], said["steps"], said["started"]) == (4, 20, started)
  assert [(entry["step"], entry["before"]) for entry in said["resumed"]] == [
      (10, {"num_replicas": 2}), (15, {})]
  assert said["evaluation"] == "by eye"


def test_a_run_that_starts_again_forgets_how_it_ended_and_at_step_0_its_notes(tmp_path):
  record = WorkdirWriter(tmp_path, FACTS)
  record.note("ended", "failed: the disk is full")
  record.note("evaluation", "by eye")
  for first_step in (10, 0):
    WorkdirWriter(tmp_path, FACTS, first_step)
    said = facts(tmp_path)
    assert "ended" not in said and ("evaluation" in said) == bool(first_step)
  assert [(entry["step"], entry["before"]) for entry in said["resumed"]] == [(10, {}), (0, {})]


def test_facts_that_a_crash_left_incomplete_are_replaced(tmp_path):
  WorkdirWriter(tmp_path, FACTS)
  (tmp_path / "run.json").write_text((tmp_path / "run.json").read_text()[:20])
  WorkdirWriter(tmp_path, FACTS, 10)
  assert FACTS.items() <= facts(tmp_path).items()


def test_config_is_every_value_that_was_used(tmp_path):
  @gin.configurable("recorded_function")
  def function(used=1, default=2.5):
    return used, default

  (tmp_path / "earlier.gin").write_text(f"{RECORD_HEADER}\nrecorded_function.default = 2.5\n")
  config.parse([str(tmp_path / "earlier.gin")],
               ["recorded_function.used = 2", "recorded_function.used = 3"])
  assert function() == (3, 2.5)
  WorkdirWriter(tmp_path, FACTS).config()
  assert facts(tmp_path)["settings"] == [["recorded_function.used", "3", "--gin_param"]]
  text = (tmp_path / "config.gin").read_text()
  assert "recorded_function.used = 3" in text and "recorded_function.default = 2.5" in text
  assert "train" not in text  # Nothing asked for it.
  (shown,) = (value for value in events_of(tmp_path) if value.tag == "config")
  (lines,) = tf.make_ndarray(shown.tensor).ravel()
  assert lines.decode() == "".join(f"    {line}\n" for line in text.splitlines())
