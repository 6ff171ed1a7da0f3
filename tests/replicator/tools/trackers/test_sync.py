"""A tracker equals `metrics.jsonl`, whatever happens to the run and to the tracker."""

import itertools
import threading
import time

from replicator import UsageError
from replicator.tools.trackers import services, tracker
from replicator.tools.trackers.sync import Followers
from tests.programs.processes import wait_until
from tests.programs.refusals import refusal
from tests.replicator.tools.trackers.conftest import Memory, Workdir

import pytest


def follow(workdir: Workdir, *trackers, first_step: int = -1) -> Followers:
  """The followers of a new process, which has begun; what they say is in `said`."""
  said: list[str] = []
  followers = Followers(trackers, workdir.folder, first_step, said.append)
  followers.said = said
  followers.begin()
  return followers


@pytest.mark.parametrize("status, last", [("finished", 20), ("failed", 20), ("interrupted", 10)])
def test_the_end_sends_all_that_belongs_to_the_run(status, last, workdir):
  memory = Memory()
  followers = follow(workdir, memory)
  workdir.log(0, 20)
  followers.settle(10)
  followers.end(status)
  (lines,) = memory.records.values()
  assert lines == {step: line for step, line in workdir.lines.items() if step <= last}
  assert sorted(memory.pictures) == list(range(0, last + 1, 10))
  assert list(memory.status.values()) == [status]


class Killed(BaseException):
  """The process ends here: nothing in it goes on, or says so."""


@pytest.mark.filterwarnings("ignore:Exception in thread")
def test_a_kill_at_any_call_loses_no_line_and_repeats_none(tmp_path):
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
    threading.excepthook, shown = lambda arguments: None, threading.excepthook
    try:
      first = follow(workdir, memory)
      for saved in (0, 10, 20):
        workdir.log(0 if saved == 0 else saved - 8, saved)
        first.settle(saved)
        wait_until(lambda saved=saved, memory=memory, dead=dead: dead.is_set() or saved in
                   memory.records.get(getattr(memory, "id", ""), {}))
      workdir.log(22, 26)  # They are lost: the last checkpoint is that of step 20.
      if not dead.is_set():
        first.end("interrupted")
    finally:
      threading.excepthook = shown
    memory.on_call = lambda name: None
    workdir.take_back(20)
    second = follow(workdir, memory, first_step=20)
    workdir.log(22, 40, loss=0.25)
    second.end("finished")
    assert list(memory.records.values())[-1] == workdir.lines
    assert list(memory.status.values())[-1] == "finished"
    assert len(memory.records) == 1
    assert second.said == []
    if not dead.is_set():
      break
  assert die_at == 26  # begin, 11 lines and end, each before and after what it does.


def test_a_rollback_to_an_older_checkpoint_begins_another_record(workdir):
  memory = Memory()
  followers = follow(workdir, memory)
  workdir.log(0, 20)
  followers.settle(20)
  wait_until(lambda: memory.records and 20 in memory.records[memory.id])
  workdir.take_back(10)  # The checkpoint of step 20 is corrupt.
  followers.settle(10)
  workdir.log(12, 30, loss=0.25)
  followers.settle(30)
  followers.end("finished")
  assert list(memory.records.values())[-1] == workdir.lines
  assert len(memory.records) == 2


@pytest.mark.parametrize("first_step", [10, -1])
def test_a_process_that_has_less_than_was_sent_begins_another_record(first_step, workdir):
  memory, other = Memory(), Memory()
  first = follow(workdir, memory)
  workdir.log(0, 20)
  first.settle(20)
  first.end("interrupted")
  workdir.take_back(first_step)  # The checkpoint of step 20 is corrupt, or none was ever made.
  for last in (30, 40):
    again = follow(workdir, memory, other, first_step=first_step)
    workdir.log(first_step + 2 if first_step > 0 else 0, last, loss=0.25)
    again.settle(last)
    again.end("interrupted")
    first_step = last
    assert list(memory.records.values())[-1] == workdir.lines
  assert (len(memory.records), len(other.records)) == (2, 1)
  assert list(memory.status.values()) == ["interrupted"] * 2  # The first one is closed, too.


def test_a_finished_run_sends_what_is_missing(workdir):
  workdir.log(0, 20)
  (workdir.folder / "trackers.json").write_text("[")  # It cannot be read.
  memory = Memory()
  Followers([memory], workdir.folder, -1, pytest.fail).end("failed")
  assert not memory.records  # It ended before its first step.
  # Nothing is left to train, so that nothing calls `begin`.
  Followers([memory], workdir.folder, 20, pytest.fail).end("finished")
  assert list(memory.records.values()) == [workdir.lines]


def test_pictures_come_with_their_steps_and_also_alone(workdir):
  memory = Memory()
  followers = follow(workdir, memory)
  workdir.log(0, 10)
  workdir.picture(7)  # An evaluation without scalars.
  (workdir.folder / "samples" / "step-best.png").touch()
  followers.end("finished")
  assert sorted(memory.pictures) == [0, 7, 10]
  assert memory.pictures[10] == (workdir.folder / "samples" / "step-00000010.png").read_bytes()
  (lines,) = memory.records.values()
  assert lines == {**workdir.lines, 7: {}}


# ---- Trackers that fail -------------------------------------------------------------------------


@pytest.mark.parametrize("method, stored", [("begin", False), ("log", True)])
def test_a_failure_is_said_once_and_made_good(method, stored, workdir):
  memory, healthy = Memory(), Memory()
  calls = itertools.count(1)

  def fail(name):
    if name == method and next(calls) in ((2, 4) if stored else (1, 2)):
      raise ConnectionError("no route to host\nat 10.0.0.1")

  memory.on_call = fail
  followers = follow(workdir, memory, healthy)
  for saved in (10, 20, 30):
    workdir.log(saved - 8, saved)
    followers.settle(saved)
    wait_until(lambda saved=saved: healthy.records and saved in healthy.records[healthy.id])
    time.sleep(0.02)  # The other tracker has tried by then.
  followers.end("finished")
  assert list(memory.records.values()) == list(healthy.records.values()) == [workdir.lines]
  assert followers.said == [
      "warning: Memory lacks lines (ConnectionError: no route to host); a later checkpoint or the "
      "same command sends them"]


def test_what_a_tracker_lacks_is_said_at_the_end_and_sent_by_the_same_command(workdir):
  memory = Memory()
  followers = follow(workdir, memory)
  workdir.log(0, 10)
  followers.settle(10)
  wait_until(lambda: memory.records and 10 in memory.records[memory.id])

  def fail(name):
    if name == "log":
      raise OSError("disk full")

  memory.on_call = fail
  workdir.log(12, 20)
  followers.end("finished")
  assert followers.said == ["warning: Memory lacks lines (OSError: disk full); a later checkpoint "
                            "or the same command sends them"]
  memory.on_call = lambda name: None
  follow(workdir, memory, first_step=20).end("finished")
  assert list(memory.records.values()) == [workdir.lines]


def test_a_tracker_that_hangs_keeps_nobody_waiting(workdir):
  memory, healthy = Memory(), Memory()
  wait = threading.Event()
  memory.on_call = lambda name: name != "log" or wait.wait()
  followers = follow(workdir, healthy, memory)
  workdir.log(0, 10)
  begun = time.monotonic()
  for step in range(11):
    followers.settle(step)
  assert time.monotonic() - begun < 0.5
  wait_until(lambda: healthy.records and 10 in healthy.records[healthy.id])
  followers.end("finished", seconds=1.0)
  assert list(healthy.records.values()) == [workdir.lines]
  assert set(healthy.records).isdisjoint(memory.records)  # Two of a kind have their own.
  assert followers.said == [
      "warning: Memory-2 is slow, and lacks lines; the same command sends them"]
  wait.set()


def test_a_begin_that_returns_nothing_is_explained(workdir):
  memory = Memory()
  memory.begin = lambda run: None
  followers = follow(workdir, memory)
  followers.end("finished")
  assert "begin returned None, not the last step" in followers.said[-1]


# ---- The run ------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder, group", [
    ("digits", ""), ("rates/trials/rate=0.1_12345678", "rates")])
def test_a_tracker_learns_the_configuration_and_the_sweep_of_the_run(folder, group, tmp_path):
  workdir, memory = Workdir(tmp_path / folder), Memory()
  if group:
    (workdir.folder / "trial.json").write_text("{}")
  follow(workdir, memory).end("finished")
  (run,) = memory.runs.values()
  assert len(run.id) == 16 and run.id == memory.id
  assert (run.name, run.experiment, run.group) == (workdir.folder.name, "sngan", group)
  assert run.workdir == workdir.folder
  assert run.config == {
      "train.steps": 40, "train.trackers": "[@MLflow()]", "Network.widths": (8, 16),
      "Network.activation": "@relu", "deep/Network.name": "a b"}


# ---- The values of `train.trackers` -------------------------------------------------------------


@pytest.mark.parametrize("trackers, message", [
    ([Memory(), 3], r"3 is no tracker; write @MLflow\(\), @WandB\(\) or @Trackio\(\), with br"),
    ([Memory], r"<class '.*Memory'> is no tracker; .* with brackets")])
def test_what_is_no_tracker_is_refused(trackers, message):
  tracker.check([Memory(), Memory()])
  with pytest.raises(UsageError, match=message):
    tracker.check(trackers)


def test_a_package_that_is_not_installed_is_named(monkeypatch):
  monkeypatch.setattr(tracker.importlib.util, "find_spec", lambda name: None)
  for kind in (services.MLflow, services.WandB, services.Trackio):
    name = kind.__name__
    assert refusal(kind) == f"@{name}() needs its package: pip install -e '.[{name.lower()}]'"
