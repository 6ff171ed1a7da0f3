"""The first lines of an experiment, in this process and as a user starts it."""

import json
import os
import re
import signal
import subprocess
import sys

from replicator.app import start
from replicator.console import status
from tests.programs.processes import ROOT

import pytest

IN_CLUSTER = {"worker": ["a:1", "b:1"], "chief": ["c:1"]}


@pytest.fixture
def said(monkeypatch, capsys):
  """A function: what `begin` says for a command line; and its environment."""
  monkeypatch.delenv("TF_CONFIG", raising=False)
  before = signal.getsignal(signal.SIGINT)

  def said(*argv: str) -> list[str]:
    start.begin("name", argv)
    start.begin("name", argv)
    start.loaded()
    start.end()
    return capsys.readouterr().out.splitlines()

  yield said
  signal.signal(signal.SIGINT, before)


def test_the_first_lines_are_the_experiment_and_its_workdir(said):
  assert said("--gin_file=a.gin", "--workdir=w", "--gin_file", "b.gin", "--eager")[1:] == [
      "workdir     w"]
  first, second = said("--gin_file=a.gin", "--gin_file", "b.gin")
  assert re.fullmatch(r"experiment  \S+, a.gin, b.gin", first)
  assert re.fullmatch(r"workdir     runs/\S+-\d{8}-\d{6}", second)


def test_the_announced_workdir_is_the_one_of_the_run_and_the_next_has_its_own(said, capsys):
  start.begin("name", [])
  start.loaded()
  announced = capsys.readouterr().out.split()[-1]
  assert start.new_workdir("later") == announced  # As the time, the name may have changed.
  start.end()
  assert start.new_workdir("later").startswith("runs/later-")


def test_what_takes_long_is_named(said, monkeypatch):
  monkeypatch.setattr(status, "SILENT_SECONDS", 0.0)
  monkeypatch.delitem(sys.modules, "tensorflow")
  assert said("--workdir=w")[2:4] == ["loading TensorFlow: 0s", "preparing data and networks: 0s"]


def test_ctrl_c_is_an_exception_again_when_all_is_loaded(said):
  said()
  assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_command_that_prints_something_else_is_not_announced(said):
  assert [said(flag, "--workdir=w") for flag in ("--explain", "--diff=runs/a", "--help", "-h")
          ] == [[]] * 4


def test_only_the_chief_of_a_cluster_speaks(said, monkeypatch):
  for kind, index, cluster, speaks in [
      ("chief", 0, IN_CLUSTER, True), ("worker", 0, IN_CLUSTER, False),
      ("worker", 0, {"worker": ["a:1", "b:1"]}, True),
      ("worker", 1, {"worker": ["a:1", "b:1"]}, False), ("ps", 0, {"ps": ["a:1"]}, False)]:
    config = {"cluster": cluster, "task": {"type": kind, "index": index}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    assert bool(said("--workdir=w")) == speaks


def test_mistakes_are_left_to_who_reads_them(said, monkeypatch):
  assert len(said("--workdir=w", "--gin_file")) == 2
  for text in ("no JSON", "[]", "{}", '{"task": 3}'):
    monkeypatch.setenv("TF_CONFIG", text)
    assert len(said("--workdir=w")) == 2
  assert len(said("--gin_file=a.gin")) == 1  # A cluster needs a workdir.


def test_an_experiment_speaks_before_tensorflow_and_ends_at_once_at_ctrl_c(tmp_path):
  # A TensorFlow that never gets ready: only what comes before it is said.
  (tmp_path / "tensorflow").mkdir()
  (tmp_path / "tensorflow" / "__init__.py").write_text("import time\ntime.sleep(600)\n")
  with subprocess.Popen(
      [sys.executable, "-m", "replicator", "run", "sngan", "--workdir=w"], cwd=ROOT, text=True,
      stdout=subprocess.PIPE, stderr=subprocess.PIPE,
      env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}) as process:
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == [
        "experiment  sngan\n", "workdir     w\n"]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
  assert (process.returncode, out, err) == (130, "", "error: interrupted\n")
