"""The report of a run: when it is written."""

import json

from replicator.training.callbacks import report
from replicator.training.callbacks.report import Report
from tests.programs.counter import Counter
from tests.replicator.console.test_status import Clock
from tests.replicator.training.runs import train

import numpy as np


class Said:
  """A run of which only the lines count."""

  workdir = "folder"

  def __init__(self):
    self.lines = []
    self.say = self.lines.append


def test_reports_take_a_hundredth_of_the_time(monkeypatch):
  clock, run, drawn = Clock(), Said(), []

  def draw(folder):
    clock.now += 1
    drawn.append(clock.now)
    if len(drawn) == 2:
      raise ZeroDivisionError("again")

  monkeypatch.setattr(report, "write_report", draw)
  monkeypatch.setattr(report.time, "monotonic", clock)
  begun, callback = clock.now, Report()
  for _ in range(500):
    callback.after_steps(run)
    clock.now += 1
  assert drawn[0] == begun + 1
  assert len(drawn) == 5 and min(np.diff(drawn)) >= 100
  # One that fails is a line, and is not tried again at every call.
  assert run.lines == ["warning: the report cannot be written (ZeroDivisionError: again)"]
  callback.end(run, RuntimeError())  # However soon.
  assert len(drawn) == 6
  callback.end(run, KeyboardInterrupt())  # The process is in a hurry.
  assert len(drawn) == 6


def test_a_run_that_is_done_says_where_its_report_is(tmp_path, capsys):
  train(tmp_path, "train.steps = 2", step=Counter)
  assert f"done: {tmp_path / 'report.html'}" in capsys.readouterr().out.replace("\n", "")
  assert (tmp_path / "report.html").exists()
  assert json.loads((tmp_path / "run.json").read_text())["ended"] == ""
