"""The report while a run goes on, and the one at its end."""

import numpy as np
import pytest

from replicator.workdir import report
from replicator.workdir.live_report import LiveReport
from tests.replicator.console.test_progress import Clock


class Record:
  """The part of a `WorkdirWriter` that a live report uses."""

  def __init__(self, workdir):
    self.workdir, self.notes = workdir, {}

  def note(self, name, fact):
    self.notes[name] = fact


@pytest.fixture
def live(workdir, monkeypatch):
  """A live report whose drawing takes a second, its clock, and the times of its drawings."""
  clock, drawn = Clock(), []

  def draw(folder):
    assert folder == workdir
    clock.now += 1
    drawn.append(clock.now)

  monkeypatch.setattr(report, "write_report", draw)
  return LiveReport(Record(workdir), pytest.fail, clock), clock, drawn


def test_reports_take_a_hundredth_of_the_time(live):
  live_report, clock, drawn = live
  begun = clock.now
  for _ in range(500):
    live_report.update()
    clock.now += 1
  assert drawn[0] == begun + 1
  assert len(drawn) == 5 and min(np.diff(drawn)) >= 100
  live_report.finish("")  # However soon.
  assert len(drawn) == 6


def test_a_report_that_fails_is_a_line(workdir, monkeypatch):
  monkeypatch.setattr(report, "write_report", lambda folder: 1 / 0)
  said, clock, line = [], Clock(), "warning: the report cannot be written (ZeroDivisionError: "
  live_report = LiveReport(Record(workdir), said.append, clock)
  assert live_report.finish("") == workdir / "report.html"
  assert said == [f"{line}division by zero)"]

  def fail_slowly(folder):
    clock.now += 1
    raise ZeroDivisionError("again")

  monkeypatch.setattr(report, "write_report", fail_slowly)
  for _ in range(50):  # It is not tried again at every call.
    live_report.update()
    clock.now += 1
  assert said[1:] == [f"{line}again)"]


def test_a_workdir_that_takes_no_note_does_not_end_a_run(workdir, monkeypatch):
  said, record = [], Record(workdir)
  monkeypatch.setattr(record, "note", lambda name, fact: 1 / 0, raising=False)
  LiveReport(record, said.append).finish("interrupted")
  assert len(said) == 1


@pytest.mark.parametrize("ended", ["", "interrupted"])
def test_the_last_report_knows_how_the_run_ended(ended, workdir, monkeypatch):
  record, known = Record(workdir), []
  monkeypatch.setattr(report, "write_report", lambda folder: known.append(dict(record.notes)))
  live_report = LiveReport(record, pytest.fail)
  live_report.update()
  live_report.finish(ended)
  assert known == [{}, {"ended": ended}]
