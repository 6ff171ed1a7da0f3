"""A signal at any moment of a run: it is saved, and its status is 42; once it is done, 0."""

import contextlib
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from replicator import launch
from replicator.checkpoints import checkpoint
from replicator.training import preemption
from tests.programs.logs import rows

ROOT = pathlib.Path(__file__).parents[3]
SETTINGS = ["train.steps = 12", "train.global_batch_size = 4", "train.log_every = 1",
            "train.eval_every = 12", "train.checkpoint_every = 4",
            "Replicator.strategy = 'multi_worker_mirrored'"]
HANG_SECONDS = 300


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


def test_a_second_sigterm_interrupts_nothing_however_late_it_comes(monkeypatch):
  monkeypatch.setattr(signal, "pthread_kill", lambda *to: pytest.fail("the run is interrupted"))
  said, seconds = [], itertools.count(step=60)
  stop = preemption.StopSignal(said.append, lambda: next(seconds))
  for _ in range(2):
    stop.hear(signal.SIGTERM)
  assert said == ["stopping after this step; Ctrl-C to stop at once"]


def test_ctrl_c_once_more_interrupts_from_a_second_later_on():
  seconds, said, passed = iter([10.0, 10.9, 11.0]), [], []
  with preemption.StopSignal(said.append, lambda: next(seconds)) as stop, \
      pytest.raises(KeyboardInterrupt):
    for press in range(3):  # A launcher hands on the first, which so comes twice.
      stop.hear(signal.SIGINT)
      passed.append(press)
  assert passed == [0, 1]
  assert said == ["stopping after this step; Ctrl-C once more to stop at once"]


@contextlib.contextmanager
def two_workers(workdir: pathlib.Path, moment: str, reached: pathlib.Path):
  """Two processes of one run, which wait at a moment."""
  with contextlib.ExitStack() as stack:
    processes = []
    for config in launch.tf_configs(workers=2):
      process = stack.enter_context(subprocess.Popen(
          [sys.executable, "-m", "tests.programs.stopped_anywhere", f"--workdir={workdir}",
           *(f"--gin_param={binding}" for binding in SETTINGS)],
          cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
          env={**os.environ, "TF_CONFIG": json.dumps(config), "no_grpc_proxy": "127.0.0.1",
               "MOMENT": moment, "REACHED": str(reached)}))
      stack.callback(process.kill)
      processes.append(process)
    yield processes


def statuses(processes: list[subprocess.Popen]) -> list[int]:
  outputs = [process.communicate(timeout=HANG_SECONDS)[0] for process in processes]
  print(*outputs)
  return [process.returncode for process in processes]


# The workers that come to each moment, and the steps that are saved in the end.
ARRIVING = {"building": ("01", 1), "evaluating": ("0", 1), "stepping": ("01", 3),
            "saving": ("0", 5), "exiting": ("01", 12)}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> list[dict]:
  """The log if nobody stops the run."""
  folder = tmp_path_factory.mktemp("unbroken")
  with two_workers(folder / "run", "", folder) as processes:
    assert statuses(processes) == [0, 0]
  return rows(folder / "run")


@pytest.mark.slow
@pytest.mark.parametrize("moment, asked", [
    ("building", [0, 1, 0, 1]), ("evaluating", [0, 1, 0, 1]), ("stepping", [1]), ("saving", [0]),
    ("exiting", [0, 1, 0, 1])])
def test_a_signal_at_any_moment_saves_and_ends_with_42(moment, asked, unbroken, tmp_path):
  arriving, saved = ARRIVING[moment]
  with two_workers(tmp_path / "run", moment, tmp_path) as processes:
    for worker in arriving:
      while not (tmp_path / f"worker-{worker}").exists():
        assert all(process.poll() is None for process in processes)
        time.sleep(0.01)
    for worker in asked:
      processes[worker].send_signal(signal.SIGTERM)
      time.sleep(0.05)  # Two signals that wait together count as one.
    (tmp_path / "go").touch()
    found = statuses(processes)
  is_done = moment == "exiting"
  assert found == ([0, 0] if is_done else [42, 42])
  steps = checkpoint.steps_of(tmp_path / "run" / "checkpoints")
  if is_done:
    assert steps[-1] == 12
  else:
    assert saved <= steps[-1] < 12
    with two_workers(tmp_path / "run", "", tmp_path) as processes:
      assert statuses(processes) == [0, 0]
  assert rows(tmp_path / "run") == unbroken
