"""The lines of a program while something takes long, with a clock and a console of the tests."""

import io
import threading

import pytest
from rich.console import Console

from replicator.console.status import Status
from tests.replicator.console.test_progress import Clock, visible


@pytest.fixture
def plain(monkeypatch):
  """A status without a terminal and without a thread, its clock, and what it writes."""
  monkeypatch.setattr(threading.Thread, "start", lambda thread: None)
  out, clock = io.StringIO(), Clock()
  with Status(Console(file=out, force_terminal=False, width=40), clock) as status:
    yield status, clock, out


def test_no_line_comes_before_four_silent_seconds(plain):
  status, clock, out = plain
  status.doing("loading")
  clock.now += 3
  status.note("devices")
  clock.now += 3
  status.beat()
  assert out.getvalue() == "devices\n"
  clock.now += 1
  status.beat()
  status.beat()
  assert out.getvalue() == "devices\nloading: 7s\n"
  clock.now += 4
  status.beat()
  assert out.getvalue().splitlines()[2:] == ["loading: 11s"]


def test_silence_counts_over_what_was_done_before_and_nothing_is_said_of_nothing(plain):
  status, clock, out = plain
  status.doing("loading")
  clock.now += 3
  status.doing("compiling")
  clock.now += 1
  status.beat()
  status.doing("")
  clock.now += 100
  status.beat()
  assert out.getvalue() == "compiling: 1s\n"


def test_nothing_is_said_after_the_end():
  out, clock = io.StringIO(), Clock()
  with Status(Console(file=out, force_terminal=False), clock) as status:
    status.doing("loading")
  clock.now += 100
  status.beat()
  assert out.getvalue() == ""


def test_a_terminal_shows_one_line_that_goes_away():
  out, clock = io.StringIO(), Clock()
  console = Console(file=out, force_terminal=True, width=60, color_system=None,
                    _environ={"TERM": "xterm"})
  with Status(console, clock) as status:
    status.doing("compiling the step")
    clock.now += 12
    status.beat()
    status.note("a note")
  shown = visible(out.getvalue())
  assert "compiling the step  12s" in shown and "a note" in shown
  assert "\x1b[2K" in out.getvalue().rpartition("compiling the step")[2]  # It was erased.
  assert out.getvalue().endswith("\x1b[?25h")  # The cursor is back.


def test_a_thread_beats_until_the_end():
  said = threading.Event()
  status = Status(Console(file=io.StringIO()))
  status.beat = said.set  # type: ignore[method-assign]
  before = set(threading.enumerate())
  with status:
    (beats,) = set(threading.enumerate()) - before
    assert said.wait(60)
  beats.join(timeout=60)
  assert not beats.is_alive()
