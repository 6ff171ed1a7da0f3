"""`run.json` and `config.gin`, written without a training."""

import json
import os
import re
import sys

from replicator.app import config
from replicator.configuration.statements import RECORD_HEADER
from replicator.training.workdir import provenance
from replicator.training.workdir.record import Record

import gin
import tensorflow as tf

FACTS = {"strategy": "mirrored", "num_replicas": 2, "seed": 0}


def facts(workdir) -> dict:
  return json.loads((workdir / "run.json").read_text())


def test_run_json_has_everything_that_a_repeated_run_needs(tmp_path, monkeypatch):
  monkeypatch.setattr("sys.argv", ["program.py", "--gin_param=a.b = 'c d'"])
  monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)
  monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
  Record(tmp_path, FACTS)
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
    Record(tmp_path, FACTS, first_step)
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
    return [line for line in Record(tmp_path, FACTS, first_step).config()
            if line.startswith("changed: ")]

  assert lines("c0ffee", "3.12", 0) == lines("c0ffee", "3.12", 5) == []
  assert lines("decade", "3.15", 10) == [
      "changed: git_commit = decade, was c0ffee", "changed: version of keras = 3.15, was 3.12"]
  assert lines("decade", "3.15", 15) == []
  (tmp_path / "run.json").unlink()  # Checkpoints alone were copied here.
  assert lines("c0ffee", "3.15", 20) == []
  assert lines("decade", "3.15", 25) == ["changed: git_commit = decade, was c0ffee"]


def test_a_resumed_run_names_files_that_were_changed_without_git(tmp_path, monkeypatch):
  def lines(first_step: int, **digests: str) -> list[str]:
    monkeypatch.setattr(provenance, "digests_of_code", lambda: digests)
    return [line for line in Record(tmp_path, FACTS, first_step).config()
            if line.startswith("changed: ")]

  assert lines(0, net="a", loss="b") == lines(5, net="a", loss="b", new="c") == []
  assert lines(10, net="d", loss="b") == ["changed: the code of net"]
  assert lines(15, net="d", loss="b") == []


def test_a_resumed_run_warns_of_python_values_that_no_change_explains(tmp_path, monkeypatch):
  def said(first_step: int, seed: int = 0, steps: int = 1, **digests: str) -> str:
    """The kinds of the lines on the step."""
    monkeypatch.setattr("sys.argv", ["program.py", f"--gin_param=train.steps = {steps}"])
    config.parse([], [], [f"train.steps = {steps}"])
    facts = {**FACTS, "seed": seed, "steps": 100 + steps, "python_state": digests}
    lines = Record(tmp_path, facts, first_step).config()
    return " ".join(line.partition(":")[0] for line in lines if "the step's" in line)

  assert said(0, words="a", width="b") == said(5, words="a", width="b", new="c") == ""
  assert said(10, words="d", width="b") == "warning"
  assert said(15, words="e", width="b", steps=2) == "warning"  # Which makes no other words.
  assert said(20, seed=1, words="f", width="b") == "note"


def test_a_resumed_run_says_so_and_keeps_its_notes(tmp_path):
  record = Record(tmp_path, FACTS)
  for method, is_new in (("by ear", True), ("by ear", False), ("by eye", True)):
    assert record.note("evaluation", method) == is_new
  started = facts(tmp_path)["started"]
  Record(tmp_path, {**FACTS, "num_replicas": 4, "steps": 20}, 10)
  Record(tmp_path, {**FACTS, "num_replicas": 4, "steps": 20}, 15)
  said = facts(tmp_path)
  assert (said["num_replicas"], said["steps"], said["started"]) == (4, 20, started)
  assert [(entry["step"], entry["before"]) for entry in said["resumed"]] == [
      (10, {"num_replicas": 2}), (15, {})]
  assert said["evaluation"] == "by eye"


def test_a_run_that_starts_again_forgets_how_it_ended_and_at_step_0_its_notes(tmp_path):
  record = Record(tmp_path, FACTS)
  record.note("ended", "failed: the disk is full")
  record.note("evaluation", "by eye")
  for first_step in (10, 0):
    Record(tmp_path, FACTS, first_step)
    said = facts(tmp_path)
    assert "ended" not in said and ("evaluation" in said) == bool(first_step)
  assert [(entry["step"], entry["before"]) for entry in said["resumed"]] == [(10, {}), (0, {})]


def test_facts_that_a_crash_left_incomplete_are_replaced(tmp_path):
  Record(tmp_path, FACTS)
  (tmp_path / "run.json").write_text((tmp_path / "run.json").read_text()[:20])
  Record(tmp_path, FACTS, 10)
  assert FACTS.items() <= facts(tmp_path).items()


def test_config_is_every_value_that_was_used(tmp_path):
  @gin.configurable("recorded_function")
  def function(used=1, default=2.5):
    return used, default

  (tmp_path / "earlier.gin").write_text(f"{RECORD_HEADER}\nrecorded_function.default = 2.5\n")
  config.parse([str(tmp_path / "earlier.gin")],
               ["recorded_function.used = 2", "recorded_function.used = 3"])
  assert function() == (3, 2.5)
  record = Record(tmp_path, {**FACTS, "seed": 7})
  record.config()
  assert facts(tmp_path)["settings"] == [["recorded_function.used", "3", "--gin_param"]]
  assert {"recorded_function.used": 3, "train.seed": 7}.items() <= record.hyperparameters().items()
  text = (tmp_path / "config.gin").read_text()
  assert "recorded_function.used = 3" in text and "recorded_function.default = 2.5" in text
  assert "train" not in text  # Nothing asked for it.
