"""A signal at any moment of a run: it is saved, and its status is 42; once it is done, 0."""

import concurrent.futures
import contextlib
import itertools
import os
import pathlib
import signal
import time

from replicator import processes
from replicator.errors import Preempted
from replicator.step import context
from replicator.training import preemption
from replicator.training.checkpoints import store
from tests.programs.counter import Counter
from tests.programs.logs import rows
from tests.programs.processes import launched
from tests.replicator.training import runs

import pytest

SETTINGS = ["train.steps = 24", "train.global_batch_size = 4", "train.log_every = 1",
            "train.eval_every = 24", "train.checkpoint_every = 4",
            "Replicator.strategy = 'multi_worker_mirrored'"]


@pytest.fixture(autouse=True)
def no_earlier_run(monkeypatch):
  monkeypatch.setattr(preemption, "_outside", None)


@pytest.fixture
def received():
  """The SIGTERMs that come to the outer handler."""
  numbers: list[int] = []
  previous = signal.signal(signal.SIGTERM, lambda number, frame: numbers.append(number))
  yield numbers
  signal.signal(signal.SIGTERM, previous)


def test_a_held_signal_comes_when_it_is_released(received):
  with preemption.sigterm_held() as release:
    release()
    os.kill(os.getpid(), signal.SIGTERM)
    with preemption.StopSignal(lambda line: None) as stop:
      assert not stop.received
      release()
      assert stop.received
    os.kill(os.getpid(), signal.SIGTERM)  # The outcome of the run is known.
  assert not received
  os.kill(os.getpid(), signal.SIGTERM)
  assert received == [signal.SIGTERM]


@pytest.mark.parametrize("outcome, is_delivered", [
    (ValueError, False), (SystemExit, True)])  # An observer's stop is no `Exception`, either.
def test_a_held_signal_ends_a_process_whose_run_was_stopped(outcome, is_delivered, received):
  with pytest.raises(outcome), preemption.sigterm_held():
    os.kill(os.getpid(), signal.SIGTERM)
    assert not received
    raise outcome
  assert bool(received) == is_delivered


def test_a_late_signal_does_not_change_the_status_of_a_program_that_has_saved(received):
  for context.run.is_program, late in ((False, [signal.SIGTERM]), (True, [])):
    with pytest.raises(Preempted), preemption.sigterm_held():
      raise Preempted("stopped at step 2, checkpoint saved")
    os.kill(os.getpid(), signal.SIGTERM)
    assert received == late
    received.clear()


def test_a_second_sigterm_interrupts_nothing_however_late_it_comes(monkeypatch):
  monkeypatch.setattr(signal, "pthread_kill", lambda *to: pytest.fail("the run is interrupted"))
  said, seconds = [], itertools.count(step=60)
  stop = preemption.StopSignal(said.append, lambda: next(seconds))
  for _ in range(2):
    stop.hear(signal.SIGTERM)
  assert said == ["stopping after this step; Ctrl-C to stop at once"]


def test_waits_are_given_up_some_time_after_a_signal_to_a_process_that_is_alone(monkeypatch):
  monkeypatch.setattr(processes, "GIVING_UP_SECONDS", 0.05)
  for alone in (True, False):
    with preemption.StopSignal(lambda line: None, alone=alone) as stop:
      time.sleep(0.2)
      assert not processes.gives_up()
      stop.hear(signal.SIGTERM)
      assert not processes.gives_up()
      time.sleep(0.2)
      assert processes.gives_up() == alone
    assert not processes.gives_up()


def test_a_wait_that_is_given_up_saves_and_resumes_as_if_it_had_not_been(tmp_path, capsys):
  def waits(step, number):
    if number == 3:
      raise processes.GivenUp("the simulator does not answer")

  settings = ["train.steps = 6", "train.log_every = 1", "train.checkpoint_every = 100"]
  with pytest.raises(Preempted, match="step 3"):
    runs.train(tmp_path, *settings, step=Counter, before_call=waits)
  assert "the simulator does not answer, and the run no longer waits" in capsys.readouterr().out
  runs.train(tmp_path, *settings, step=Counter)
  assert [row["count"] for row in rows(tmp_path)] == [1, 2, 3, 4, 5, 6]


def test_a_program_that_does_not_answer_ctrl_c_ends(monkeypatch):
  ended, said = [], []
  monkeypatch.setattr(context.run, "is_program", True)
  monkeypatch.setattr(preemption, "_INTERRUPTS", 1)
  seconds = iter([10.0, 12.0])
  stop = preemption.StopSignal(said.append, lambda: next(seconds))

  def end(status):
    ended.append(status)
    stop._is_hurried = False

  monkeypatch.setattr(signal, "pthread_kill", lambda *to: None)  # The main thread hears nothing.
  monkeypatch.setattr(os, "_exit", end)
  stop.hear(signal.SIGINT)
  stop.hear(signal.SIGINT)
  assert ended == [130] and said[-1].startswith("error: the run does not respond")


def test_ctrl_c_once_more_interrupts_from_a_second_later_on():
  before = signal.getsignal(signal.SIGINT)  # A shell's background process ignores it.
  seconds, said, passed = iter([10.0, 10.9, 11.0]), [], []
  with preemption.StopSignal(said.append, lambda: next(seconds)) as stop, \
      pytest.raises(KeyboardInterrupt):
    for press in range(3):  # A launcher hands on the first, which so comes twice.
      stop.hear(signal.SIGINT)
      passed.append(press)
  assert passed == [0, 1]
  assert signal.getsignal(signal.SIGINT) is before
  assert said == ["stopping after this step; Ctrl-C again to stop at once"]


def run(workdir: pathlib.Path, moment: str = "", asked: str = "", status: int = 0) -> None:
  """Trains in two processes, of which the `asked` are asked to stop at a moment."""
  launched(["--workers=2"], "tests.programs.stopped_anywhere", f"--workdir={workdir}",
           bindings=SETTINGS, status=status, MOMENT=moment, ASKED=asked)


@pytest.mark.slow
def test_a_signal_at_any_moment_saves_and_ends_with_42(tmp_path):
  run(tmp_path / "unbroken")
  unbroken, last = rows(tmp_path / "unbroken"), 0
  # Each run resumes the one before, and saves after so many steps at least.
  for moment, asked, steps in (("evaluating", "0", 1), ("building", "01", 1), ("stepping", "1", 3),
                               ("saving", "0", 2), ("exiting", "01", 0), ("done", "", 0)):
    is_done = moment in ("exiting", "done")
    run(tmp_path / "asked", moment, asked, status=0 if is_done else 42)
    before, last = last, store.steps_of(tmp_path / "asked" / "checkpoints")[-1]
    assert last == 24 if is_done else before + steps <= last < 24, moment
    logged = rows(tmp_path / "asked")
    assert logged == unbroken[:len(logged)] and len(logged) >= last, moment
  assert logged == unbroken


def status_of_child(number: int) -> int:
  """The exit status of a forked process that gets a signal, or lives on for a while."""
  child = os.fork()
  if not child:
    os.kill(os.getpid(), number)
    os._exit(0)
  return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_process_forked_in_a_training_ends_at_a_sigterm_which_its_parent_does_not_hear():
  said: list[str] = []
  with preemption.sigterm_held(), preemption.StopSignal(said.append) as stop:
    assert status_of_child(signal.SIGTERM) == -signal.SIGTERM
    assert status_of_child(signal.SIGINT) == 0
    assert not stop.received
  assert status_of_child(signal.SIGTERM) == -signal.SIGTERM
  assert not said


def test_a_process_forked_after_a_program_has_saved_ends_at_a_sigterm(monkeypatch):
  monkeypatch.setattr(context.run, "is_program", True)
  previous = signal.getsignal(signal.SIGTERM)
  with contextlib.suppress(Preempted), preemption.sigterm_held():
    raise Preempted(3)
  assert status_of_child(signal.SIGTERM) == -signal.SIGTERM
  signal.signal(signal.SIGTERM, previous)


def test_another_thread_trains_without_signals(tmp_path, capsys):
  with concurrent.futures.ThreadPoolExecutor(1) as pool:
    pool.submit(runs.train, tmp_path, "train.steps = 2", step=Counter).result()
  assert "not called in the main thread" in capsys.readouterr().out
  assert [row["count"] for row in rows(tmp_path)] == [1, 2]
