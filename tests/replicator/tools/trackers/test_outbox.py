"""A tracker equals `metrics.jsonl`, whatever happens to the run and to the tracker."""

import itertools
import threading
import time

from replicator.errors import Preempted, RunFailed
from replicator.tools.trackers import outbox
from replicator.tools.trackers.tracker import Tracker
from tests.programs.processes import wait_until
from tests.replicator.tools.trackers.conftest import Memory, Process, Workdir

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def soon(monkeypatch):
  """What fails is tried again at once."""
  monkeypatch.setattr(outbox, "RETRY_SECONDS", 0.01)


def wait_for(memory: Memory, step: int) -> None:
  wait_until(lambda: memory.records and step in list(memory.records.values())[-1])


def test_a_line_is_sent_when_it_is_logged(workdir):
  memory = Memory()
  process = Process(workdir, memory)
  for step in (0, 2, 4):
    process.log(step, step)
    wait_for(memory, step)
  process.end()
  assert list(memory.records.values()) == [workdir.lines]
  assert list(memory.status.values()) == ["finished"]


def test_nothing_is_opened_before_the_configuration_is_written(workdir):
  memory = Memory()
  process = Process(workdir, memory)
  process.writer.scalars(0, {"eval/score": 0.5})
  memory.evaluated(process, None)
  process.writer.flush()
  time.sleep(0.02)
  assert not memory.records
  process.log(2, 4)
  process.end()
  assert list(memory.records.values()) == [workdir.lines] and 0 in workdir.lines


def test_a_run_that_ends_before_its_first_step_has_no_record(workdir):
  memory = Memory()
  process = Process(workdir, memory)
  process.writer.scalars(0, {"eval/score": 0.5})
  process.writer.flush()
  process.end(RunFailed("the first step cannot be compiled"))
  assert not memory.records


def test_a_run_that_goes_back_begins_another_record_at_once(workdir):
  memory = Memory()
  first = Process(workdir, memory)
  first.log(0, 40)
  first.end()
  before = workdir.lines
  second = Process(workdir, memory, step=20, went_back=True)
  second.log(22, 22, loss=0.25)
  wait_for(memory, 22)
  second.end()
  assert list(memory.records.values()) == [before, workdir.lines]
  assert max(workdir.lines) == 22 and workdir.lines[20] == before[20]


class Killed(BaseException):
  """The process ends here: nothing in it goes on, or says so."""


def test_a_kill_at_any_call_loses_no_line_and_repeats_none(tmp_path, monkeypatch):
  monkeypatch.setattr(threading, "excepthook", lambda arguments: None)
  calls = 0
  for die_at in itertools.count():
    workdir, memory = Workdir(tmp_path / str(die_at)), Memory()
    dead = threading.Event()

    def count(name, dead=dead, die_at=die_at):
      nonlocal calls
      calls += 1
      if calls > die_at:
        dead.set()
        raise Killed

    calls, memory.on_call = 0, count
    first = Process(workdir, memory)
    first.log(0, 26)
    first.end(KeyboardInterrupt())
    memory.on_call = lambda name: None
    second = Process(workdir, memory, step=20)  # The last checkpoint is that of step 20.
    second.log(22, 26)
    second.log(28, 40, loss=0.25)
    second.end()
    assert list(memory.records.values()) == [workdir.lines]
    assert list(memory.status.values()) == ["finished"]
    assert sorted(memory.images) == [0, 10, 20, 30, 40]
    assert second.said == []
    if not dead.is_set():
      break
  assert die_at == 32  # open, 14 lines and close, each before and after what it does.


@pytest.mark.parametrize("loss, first", [(0.25, 22), (0.5, 21)], ids=["values", "steps"])
def test_a_resumed_run_that_logs_other_lines_begins_another_record(loss, first, workdir):
  memory = Memory()
  Process(workdir, memory).log(0, 26)
  wait_for(memory, 26)
  calls: list[str] = []
  memory.on_call = calls.append
  resumed = Process(workdir, memory, step=20)
  resumed.log(first, 24, loss)  # It is killed before it knows.
  wait_until(lambda: calls == ["open", "open"])  # Its thread goes on, and must not open later.
  resumed = Process(workdir, memory, step=20)
  resumed.log(first, 40, loss)
  resumed.end()
  assert list(memory.records.values())[1:] == [workdir.lines]
  assert list(memory.status.values()) == ["interrupted", "finished"]


def test_a_rollback_begins_another_record_if_a_line_was_taken_back(workdir):
  memory = Memory()
  process = Process(workdir, memory)
  process.log(0, 20)
  process.roll_back(20)
  process.log(22, 26)
  wait_for(memory, 26)
  assert len(memory.records) == 1
  process.roll_back(10)
  process.log(12, 30, loss=0.25)
  process.end()
  assert list(memory.records.values())[1:] == [workdir.lines]
  assert list(memory.status.values()) == ["interrupted", "finished"]
  assert memory.images[10]["samples"].tolist() == np.full([4, 4, 3], 10).tolist()


def test_a_resumed_run_may_roll_back_before_it_has_repeated_all_lines(workdir):
  memory = Memory()
  Process(workdir, memory).log(0, 26)
  wait_for(memory, 26)
  process = Process(workdir, memory, step=20)
  process.log(22, 24)
  process.roll_back(20)
  process.log(22, 40, loss=0.25)
  process.end()
  assert list(memory.records.values())[1:] == [workdir.lines]


def test_what_is_taken_back_before_it_is_sent_is_never_sent(workdir):
  memory, wait = Memory(), threading.Event()
  memory.on_call = lambda name: name == "open" and wait.wait()
  process = Process(workdir, memory)
  process.log(0, 26)
  process.roll_back(10)
  process.log(12, 30, loss=0.25)
  wait.set()
  process.end()
  assert list(memory.records.values()) == [workdir.lines]


def test_a_tracker_that_is_added_later_gets_all_lines(workdir):
  memory, late = Memory(), Memory()
  process = Process(workdir, memory)
  process.log(0, 20)
  process.end(Preempted(20))
  assert list(memory.status.values()) == ["interrupted"]
  process = Process(workdir, memory, late, step=20)
  process.log(22, 30)
  process.end()
  assert [*memory.records.values(), *late.records.values()] == [workdir.lines] * 2
  assert sorted(late.images) == [0, 10, 20, 30]


def test_a_finished_run_sends_what_is_missing(workdir):
  Process(workdir).log(0, 20)
  (workdir.folder / "trackers.json").write_text("[")  # It cannot be read.
  memory = Memory()
  Process(workdir, memory, step=20).end()  # Nothing is left to train.
  assert list(memory.records.values()) == [workdir.lines]


def test_everything_of_a_step_comes_at_once(workdir):
  memory = Memory()
  process = Process(workdir, memory)
  process.writer.images(2, {"samples": np.zeros([2, 2], np.uint8), "deep/er": np.ones([2, 2])})
  process.writer.histograms(2, {"codes": np.arange(64), "ones": np.ones(3),
                                "near": np.array([1.0, np.nextafter(1.0, 2.0)])})
  process.writer.text(2, {"note": "a line"})
  process.log(2, 4)
  process.writer.text(4, {"note": "after its line"})
  process.end()
  first, second, third = memory.sent
  assert first.scalars == workdir.lines[2] and first.text == {"note": "a line"}
  assert {name: x.tolist()[0][0] for name, x in first.images.items()} == {
      "samples": [0, 0, 0], "deep/er": [255, 255, 255]}
  assert {name: (counts.sum(), edges[0], edges[-1])
          for name, (counts, edges) in first.histograms.items()} == {
      "codes": (64, 0.0, 63.0), "ones": (3, 0.5, 1.5), "near": (2, 1.0, np.nextafter(1.0, 2.0))}
  assert (third.step, second.text, third.text) == (4, {}, {"note": "after its line"})


def test_images_of_a_workdir_are_sent_under_their_names(workdir):
  process = Process(workdir)
  process.writer.images(0, {"deep/er": np.ones([2, 2])})
  process.log(2, 4)
  (workdir.folder / "samples" / "step-best.png").touch()
  memory = Memory()
  Process(workdir, memory, step=4).end()
  assert [(line.step, list(line.images)) for line in memory.sent] == [
      (0, ["deep/er"]), (2, []), (4, [])]
  assert memory.sent[0].images["deep/er"].tolist() == np.full([2, 2, 3], 255).tolist()


# ---- Trackers that fail -------------------------------------------------------------------------


@pytest.mark.parametrize("method, stored", [("open", False), ("send", True), ("send", False)])
def test_a_failure_is_said_once_and_made_good(method, stored, workdir):
  memory, healthy = Memory(), Memory()
  calls = itertools.count(1)

  def fail(name):
    if name == method and next(calls) in ((2, 4) if stored else (1, 2)):
      raise ConnectionError("no route to host\nat 10.0.0.1")

  memory.on_call = fail
  process = Process(workdir, memory, healthy)
  for last in (10, 20, 30):
    process.log(last - 8, last)
    wait_for(memory, last)
  process.end()
  assert list(memory.records.values()) == list(healthy.records.values()) == [workdir.lines]
  assert process.said == [
      "warning: Memory lacks lines (ConnectionError: no route to host); they will be sent later, "
      "or rerun the same command to send them"]


def test_lines_that_a_service_has_lost_are_sent_again(workdir):
  memory = Memory()
  process = Process(workdir, memory)
  process.log(0, 20)
  wait_for(memory, 20)
  (lines,) = memory.records.values()
  calls = itertools.count()

  def crash(name):
    if name == "send" and not next(calls):
      for step in (16, 18, 20):
        del lines[step]
      raise ConnectionError("the service was started again")

  memory.on_call = crash
  process.log(22, 30)
  process.end()
  assert list(memory.records.values()) == [workdir.lines]


def test_what_a_tracker_lacks_is_said_at_the_end_and_sent_by_the_same_command(workdir):
  memory = Memory()
  process = Process(workdir, memory)
  process.log(0, 10)
  wait_for(memory, 10)

  def fail(name):
    if name == "send":
      raise OSError("disk full")

  memory.on_call = fail
  process.log(12, 20)
  process.end()
  assert process.said[-1] == (
      "warning: Memory lacks lines (OSError: disk full); rerun the same command to send them")
  memory.on_call = lambda name: None
  Process(workdir, memory, step=20).end()
  assert list(memory.records.values()) == [workdir.lines]


def test_a_tracker_that_hangs_keeps_nobody_waiting(workdir, monkeypatch):
  memory, healthy = Memory(), Memory()
  wait = threading.Event()
  memory.on_call = lambda name: name != "send" or wait.wait()
  process = Process(workdir, healthy, memory)
  process.log(0, 10)  # It returns.
  wait_for(healthy, 10)
  end = outbox.Outbox.end
  monkeypatch.setattr(outbox.Outbox, "end", lambda self, status, seconds: end(self, status, 0.5))
  process.end()
  assert list(healthy.records.values()) == [workdir.lines]
  assert set(healthy.records).isdisjoint(memory.records)  # Two of a kind have their own.
  assert process.said == ["warning: Memory-2 is slow, and lacks lines; rerun the same command to "
                          "send them"]
  wait.set()
  wait_until(lambda: list(memory.status.values()) == ["finished"])  # The process lives on.
  assert list(memory.records.values()) == [workdir.lines]


@pytest.mark.parametrize("error, status, seconds", [
    (None, "finished", 30.0), (RunFailed("x"), "failed", 30.0), (Preempted(4), "interrupted", 30.0),
    (KeyboardInterrupt(), "interrupted", 3.0)])
def test_how_a_run_ended_is_told(error, status, seconds, workdir, monkeypatch):
  memory, waited = Memory(), []
  end = outbox.Outbox.end

  def noted(self, status, seconds):
    waited.append(seconds)
    end(self, status, seconds)

  monkeypatch.setattr(outbox.Outbox, "end", noted)
  process = Process(workdir, memory)
  process.log(0, 4)
  process.end(error)
  assert list(memory.status.values()) == [status] and waited == [seconds]
  assert list(memory.records.values()) == [workdir.lines]


def test_a_tracker_that_opens_without_a_step_is_explained(workdir):
  memory = Memory()
  memory.open = lambda run: "4"
  process = Process(workdir, memory)
  process.log(0, 4)
  process.end()
  assert "open returned '4', not the last step" in process.said[-1]


# ---- A tracker of one's own ---------------------------------------------------------------------


class TextFile(Tracker):
  """Writes what a run logs to a file in its folder."""

  def open(self, run):
    self.file = (run.workdir / f"log-{run.id}.txt").open("a")

  def send(self, line):
    print(line.step, line.scalars["loss"], file=self.file, flush=True)

  def close(self, status):
    print(status, file=self.file)
    self.file.close()


def test_a_tracker_of_ones_own_gets_each_line_once(workdir):
  killed = Process(workdir, TextFile())
  killed.log(0, 26)
  noted = workdir.folder / "trackers.json"
  wait_until(lambda: noted.exists() and '"step": 26' in noted.read_text())
  process = Process(workdir, TextFile(), step=20)
  process.log(22, 30)
  process.roll_back(10)
  process.log(12, 30, loss=0.25)
  process.end()
  second, first = sorted((path.read_text().splitlines()
                          for path in workdir.folder.glob("log-*.txt")), key=lambda x: x[-1])
  assert first[:14] == [f"{step} 0.5" for step in range(0, 28, 2)] and first[-1] == "interrupted"
  assert len({*first}) == len(first)
  assert second == [*(f"{step} 0.5" for step in range(0, 12, 2)),
                    *(f"{step} 0.25" for step in range(12, 32, 2)), "finished"]
