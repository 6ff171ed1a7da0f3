"""The lines of a program and of a training, with a clock and a console that the tests make."""

import io
import re
import threading

from replicator.console import kernel
from replicator.console.formatting import format_bar, format_duration, format_number
from replicator.console.status import Progress, Status

import pytest
from rich.console import Console


class Clock:
  """Seconds that pass when the test says so."""

  def __init__(self):
    self.now = 1000.0

  def __call__(self) -> float:
    return self.now


def made(total_steps: int = 5000, first_step: int = 0, terminal: bool = False, width: int = 40
         ) -> tuple[Progress, Clock, io.StringIO]:
  """A progress, its clock, and what it writes: to no terminal, or to one with control codes."""
  out, clock = io.StringIO(), Clock()
  console = Console(file=out, force_terminal=terminal, width=width, color_system=None,
                    _environ={"TERM": "xterm"})
  return Progress(total_steps, 64, first_step, console=console, clock=clock), clock, out


def visible(text: str) -> list[str]:
  """The states of the line, one string for each, without control codes."""
  text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
  return [line.rstrip() for line in re.split(r"[\r\n]+", text) if line.strip()]


def test_the_plain_lines_are_kept_on_a_terminal_too():
  kept = []
  console = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "xterm"})
  clock = Clock()
  with Progress(1000, 64, console=console, clock=clock, keep=kept.append) as progress:
    progress.note("devices")
    for step, seconds in ((100, 10.0), (110, 1.0), (120, 1.0), (200, 9.0), (210, 1.0)):
      clock.now += seconds
      progress.update(step, {"loss": 0.5})
  assert [line.split("  ")[0] for line in kept] == [
      "devices", "step 100/1000", "step 200/1000", "step 210/1000"]


# ---- What is being done -------------------------------------------------------------------------


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


# ---- Plain lines of a training ------------------------------------------------------------------


def test_a_plain_line_has_steps_rates_scalars_and_time_left():
  progress, clock, out = made()
  with progress:
    clock.now += 10  # 100 steps, compilation included.
    progress.update(100, {"d": 2.0})
    clock.now += 8   # 400 steps in 8 s: 50 steps/s, 3200 examples/s, 4500 to go.
    progress.update(500, {"d": 1.23449, "g": 0.456, "encoder": 1e-7}, data_wait=0.027)
  assert out.getvalue().splitlines() == [
    "step 100/5000  10 steps/s  640 examples/s  d 2  8m 10s left",
    "step 500/5000  50 steps/s  3200 examples/s  data wait 3%  d 1.234  g 0.456  "
    "encoder 1e-07  1m 30s left"]


def test_plain_lines_come_seldom_and_the_last_always_comes():
  progress, clock, out = made(total_steps=100)
  with progress:
    for step in range(1, 101):
      clock.now += 0.1
      progress.update(step, {"d": float(step)})
  steps = [int(re.match(r"step (\d+)/100", line).group(1)) for line in out.getvalue().splitlines()]
  assert steps == [1, 51, 100]
  assert out.getvalue().endswith("d 100  took 10s\n")


def test_the_newest_line_is_shown_when_the_training_stops_early():
  progress, clock, out = made()
  with pytest.raises(KeyboardInterrupt), progress:
    for step in (1, 2, 3):
      clock.now += 1
      progress.update(step, {})
    raise KeyboardInterrupt
  assert [line.split()[1] for line in out.getvalue().splitlines()] == ["1/5000", "3/5000"]


def test_the_recent_past_is_half_a_minute():
  progress, clock, out = made()
  with progress:
    for step in [*range(1, 21), 50]:  # 1 step/s, and then 30 at once.
      clock.now += 1
      progress.update(step, {})
  assert " 2.45 steps/s" in out.getvalue().splitlines()[-1]  # 49 steps in 20 s.


@pytest.mark.parametrize("first_step, back_to", [(0, 50), (0, 190), (90, 50)])
def test_after_a_rollback_the_rate_is_that_of_the_steps_made_again(first_step, back_to):
  progress, clock, out = made(first_step=first_step)
  with progress:
    for step in (100, 200):
      clock.now += 10
      progress.update(step, {})
    progress.go_back(back_to)
    for number in (1, 2):
      clock.now += 10
      progress.update(back_to + 10 * number, {})
      assert out.getvalue().splitlines()[-1].startswith(
          f"step {back_to + 10 * number}/5000  1 steps/s  64 examples/s")


@pytest.mark.parametrize("scalars, shown", [
    ({"a" * 25: 0.5, "b" * 25: 0.5}, f"{'a' * 25} 0.5  {'b' * 25} 0.5"),
    ({"a" * 25: 0.5, "b" * 26: 0.5}, f"{'a' * 25} 0.5  +1"), ({"a" * 60: 0.5}, "+1"),
    ({f"loss_of_network_{i}": 0.5 for i in range(10)},
     "loss_of_network_0 0.5  loss_of_network_1 0.5  +8"),
    ({"loss/discriminator": 1.23449, "loss/generator": 0.7012, "loss/encoder": 0.51,
      "d_accuracy": 0.75}, "loss/discriminator 1.234, generator 0.7012, encoder 0.51  +1"),
    ({"loss/a": 1.0, "x": 2.0, "loss/b": 3.0, "eval/b": 4.0, "eval/c": 5.0},
     "loss/a 1  x 2  loss/b 3  eval/b 4, c 5")])
def test_scalars_take_at_most_60_characters_and_the_others_are_counted(scalars, shown):
  progress, _, out = made()
  with progress:
    progress.update(1, scalars)
  assert out.getvalue() == f"step 1/5000  0 steps/s  0 examples/s  {shown}\n"


def test_a_note_is_printed_unchanged():
  progress, _, out = made()
  with progress:
    progress.note("saved [bold]checkpoints/7[/bold], a line longer than the console is wide")
  assert out.getvalue() == (
    "saved [bold]checkpoints/7[/bold], a line longer than the console is wide\n")


def test_a_dumb_terminal_gets_plain_lines():
  out = io.StringIO()
  console = Console(file=out, force_terminal=True, color_system=None, _environ={"TERM": "dumb"})
  with Progress(10, 1, console=console, clock=Clock()) as progress:
    progress.update(5, {"d": 1.0})
  assert out.getvalue() == "step 5/10  0 steps/s  0 examples/s  d 1\n"


# ---- The live line of a training ----------------------------------------------------------------


def test_the_live_line_is_one_line_with_a_bar():
  progress, clock, out = made(terminal=True, width=120)
  with progress:
    for step in (1000, 2000, 5000):
      clock.now += 10
      progress.update(step, {"d": 1.5, "g": 0.25})
    progress.note("step 5000  eval/classifier_frechet_distance 31.4")
  drawn = visible(out.getvalue())
  assert drawn[0].startswith("━━")
  assert "1000/5000  100 steps/s  6400 examples/s  d 1.5  g 0.25  40s left" in drawn[0]
  assert "5000/5000" in drawn[2] and drawn[2].endswith("took 30s")
  assert "step 5000  eval/classifier_frechet_distance 31.4" in drawn


@pytest.mark.parametrize("width, shown", [
    (160, "6400 examples/s  data wait 2%  loss/discriminator 1.5, generator 0.25  40s left"),
    (95, "1000/5000  100 steps/s  6400 examples/s  loss/discriminator 1.5  +1  40s left"),
    (80, "1000/5000  100 steps/s  loss/discriminator 1.5  +1  40s left")])
def test_a_narrow_terminal_shows_a_loss_rather_than_rates(width, shown):
  progress, clock, out = made(terminal=True, width=width)
  with progress:
    clock.now += 10
    progress.update(1000, {"loss/discriminator": 1.5, "loss/generator": 0.25}, data_wait=0.02)
  (drawn,) = set(visible(out.getvalue()))
  assert shown in drawn and len(drawn) <= width


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_live_line_fits_the_terminal(width):
  progress, clock, out = made(terminal=True, width=width)
  with progress:
    clock.now += 1
    progress.update(123, {f"loss{i}": 0.123456 for i in range(20)})
  drawn = visible(out.getvalue())
  assert len(set(drawn)) == 1
  assert len(drawn[0]) <= width
  assert width == 40 or drawn[0].endswith("s left")  # Only scalars are cut,
  assert width - len(drawn[0]) <= len("  loss10 0.1235")  # and no more of them than must be.


# ---- In a notebook ------------------------------------------------------------------------------


def test_a_notebook_is_a_kernel_and_a_program_is_none(request):
  assert not kernel.is_kernel()
  request.getfixturevalue("notebook")
  assert kernel.is_kernel()


def test_the_progress_is_one_line_that_does_not_change_too_often(notebook):
  out = io.StringIO()
  with Progress(1000, 64, console=Console(file=out)) as progress:
    progress.note("a line that stays")
    for step in range(1, 1001):
      progress.update(step, {"a < b": 2.0})
  assert out.getvalue() == "a line that stays\n"
  (line,) = notebook
  assert len(line) < 20 and "1000/1000" in line[-1] and "a &lt; b 2" in line[-1]


# ---- Numbers ------------------------------------------------------------------------------------


def test_numbers_have_four_digits():
  texts = {
    1.23449: "1.234", 0.0002: "0.0002", 0.0: "0", 10.0: "10", 2637.4: "2637", 9999.4: "9999",
    9999.6: "10000", -9999.6: "-10000", 123456.7: "123457", 10000.0: "10000",
    9_999_999.0: "9999999", 1e7: "1e+07", 1.5e-6: "1.5e-06", -0.04567891: "-0.04568",
    -2.5e9: "-2.5e+09", float("nan"): "nan", float("-inf"): "-inf"}
  assert {value: format_number(value) for value in texts} == texts


def test_durations_have_two_units():
  texts = {0.2: "0s", 12: "12s", 59.6: "1m 00s", 125: "2m 05s", 3 * 3600 + 7 * 60 + 1: "3h 07m",
           2 * 86400 + 4 * 3600: "2d 04h", 60: "1m 00s", 3600: "1h 00m", 86400: "1d 00h"}
  assert {seconds: format_duration(seconds) for seconds in texts} == texts


def test_a_bar_is_full_at_the_end():
  assert [format_bar("reading", *part) for part in ((0, 3), (1, 3), (1024, 1024))] == [
    f"reading  {'─' * 24}  0 of 3", f"reading  {'━' * 8}{'─' * 16}  1 of 3",
    f"reading  {'━' * 24}  1,024 of 1,024"]
