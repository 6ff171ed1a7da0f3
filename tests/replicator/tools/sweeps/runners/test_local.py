"""Sweeps of a tiny experiment as local processes: run, run again, failed, stopped, killed."""

import os
import signal
import threading
import time

from replicator.tools.sweeps import trial_process, trials
from replicator.tools.sweeps.runners import local
from replicator.tools.sweeps.trial_process import Attempt
from replicator.tools.sweeps.trials import Record
from replicator.training.workdir import claim, lock
from tests.programs.processes import wait_until

import pytest

# ---- Once and again -----------------------------------------------------------------------------


def test_every_trial_runs_once_with_its_share_of_threads_and_a_second_sweep_runs_none(
    sweep, monkeypatch):
  monkeypatch.setattr(local, "usable_cores", lambda: 7)
  for _ in range(2):
    assert sweep.run() == 0
    assert sweep.statuses() == ["done"] * 4
    assert sweep.out.endswith(f"4 of 4 done: {sweep.folder}/sweep.csv, {sweep.folder}/sweep.html\n")
    assert [trial.state.name for trial in sweep.study().trials] == ["COMPLETE"] * 4
    (sweep.folder / "optuna.log").unlink()  # Sweeps of earlier versions have none.
  assert list(sweep.logs().values()) == [[0]] * 4
  assert {path.read_text() for path in sweep.folder.glob("trials/*/output.log")} == {
    "from step 0 threads 3 3 3\n"}


@pytest.mark.parametrize("cores, jobs, divided", [
  (5, None, (2, 2)), (1, None, (1, 1)), (2, 3, (3, 1)), (7, 2, (2, 3))])
def test_the_cores_of_a_machine_are_divided(cores, jobs, divided, monkeypatch):
  monkeypatch.setattr(local, "usable_cores", lambda: cores)
  assert local.divided(jobs) == divided


def gpus_of_held_trials(sweep) -> list[str]:
  found: list[str] = []

  def are_held() -> bool:
    found[:] = sorted((trial / "gpus").read_text() for trial in sweep.held())
    return len(found) == 2

  assert sweep.run_stopped(are_held, signal.SIGTERM) == 42
  return found


def test_trials_at_a_time_have_gpus_of_their_own(sweep, monkeypatch):
  monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,7,8,9")
  assert gpus_of_held_trials(sweep.write_held(gpus_per_trial=2)) == ["3,5", "7,8"]
  assert gpus_of_held_trials(sweep.write_held(seeds=[3, 4])) == ["3", "5"]
  shared = sweep.write_held(seeds=[5, 6], gpus_per_trial=0)
  assert gpus_of_held_trials(shared) == ["3,5,7,8,9"] * 2
  assert sweep.write(gpus_per_trial=3).run() == 2
  assert sweep.err.startswith("error: --jobs=2: each trial gets 3 of the 5 GPUs here (sweep.gpus_")
  monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")  # That hides all.
  assert local.usable_gpus() == []
  assert gpus_of_held_trials(sweep.write_held(seeds=[7, 8])) == ["-1", "-1"]


# ---- Failures -----------------------------------------------------------------------------------


def test_a_failed_trial_is_recorded_left_alone_and_retried_on_request(sweep):
  sweep.write(zip={"lr": [0.1, 0.3], "fail": [0, 2]}, grid={}, seeds=[1])
  assert sweep.run() == 1
  assert "failed: fail=2_lr=0.3_seed=1" in sweep.out and "error: it broke" in sweep.out
  assert "; --retry_failed runs it again\n" in sweep.out
  assert sweep.statuses() == ["done", "failed"]
  assert sweep.run("--explain") == 0
  assert sweep.out.count(": done\n") == 1 and sweep.out.count(": failed\n") == 1
  assert sweep.run("--explain", "--retry_failed") == 0
  assert ": failed, to resume\n" in sweep.out
  assert sweep.run() == 1
  assert sorted(sweep.logs().values()) == [[0], [0]]
  assert sweep.run("--retry_failed") == 1
  (failed,) = (name for name in sweep.logs() if name.startswith("fail=2"))
  assert sweep.logs()[failed] == [0, 1]
  record = trials.read_record(sweep.folder / "trials" / failed)
  assert (record.exit_code, record.message) == (1, "error: it broke")
  (sweep.folder / "trials" / failed / "repaired").touch()
  assert sweep.run("--retry_failed") == 0
  assert sweep.logs()[failed] == [0, 1, 1]
  assert [trial.state.name for trial in sweep.study().trials] == ["COMPLETE", "FAIL", "COMPLETE"]


@pytest.fixture
def attempt(tmp_path):
  """A function that makes an attempt at the same trial, a program of the given lines."""
  def make(lines: str) -> Attempt:
    (tmp_path / "program.py").write_text(f"import os, sys, time\n{lines}\n")
    folder = tmp_path / "trials" / "t"
    folder.mkdir(parents=True, exist_ok=True)
    record = trials.read_record(folder) or Record("t", {}, command="python program.py")
    record.write(folder)
    return Attempt("t", tmp_path, cwd=str(tmp_path))
  return make


def test_how_a_trial_ended_is_recorded(attempt, tmp_path):
  for code, exit_code, status, message in [  # Each attempt is of the same trial.
      ("print('a'); print('b  '); sys.exit(3)", 3, "failed", "b"),
      ("sys.exit(4)", 4, "failed", "it printed nothing"), ("sys.exit(42)", 42, "stopped", ""),
      ("print('so', flush=True); os.kill(os.getpid(), 9)", -9, "failed", "ended by signal 9: so"),
      ("print('so')", 0, "done", "")]:
    record = attempt(code).run()
    assert (record.exit_code, record.status, record.message) == (exit_code, status, message)
    assert trials.read_record(tmp_path / "trials" / "t") == record


def test_a_trial_that_runs_says_so_and_the_times_of_its_processes_add_up(attempt, tmp_path):
  seconds = [0.0]
  for _ in range(2):
    running = attempt("sys.exit(3)")
    assert running.poll() is None
    assert trials.read_record(tmp_path / "trials" / "t").status == "running"
    seconds.append(running.run().seconds)
  assert 0 < seconds[1] < seconds[2]
  (tmp_path / "trials" / "t" / trial_process.STOP).touch()  # Pruned before it starts.
  assert attempt("").run().status == "pruned"
  assert not (tmp_path / "trials" / "t" / trial_process.STOP).exists()


def test_a_trial_that_runs_elsewhere_does_not_start(attempt, monkeypatch):
  monkeypatch.setattr(trial_process, "LOCK_SECONDS", 0.1)
  first, second = attempt("time.sleep(600)"), attempt("time.sleep(600)")
  assert first.poll() is None
  assert second.run().message == "another process is still running this trial"
  first.stop()
  assert first.run().status == "stopped"


def test_a_metric_that_no_trial_logs_ends_the_sweep(sweep):
  assert sweep.write(metric="eval/los").run() == 2
  assert sweep.err == ("error: sweep.metric = 'eval/los': the trials do not log it. Did you mean "
                       "'eval/loss'? They log: eval/loss\n")
  assert len(sweep.logs()) == 2 and sweep.statuses().count("done") >= 1  # What was done is kept.


# ---- Stopped ------------------------------------------------------------------------------------


def test_a_stopped_sweep_saves_loads_no_tensorflow_and_the_same_command_resumes(sweep):
  process = sweep.write_held().start_held()
  os.killpg(process.pid, signal.SIGINT)  # As a terminal does: it reaches the sweep alone.
  output, _ = process.communicate()
  assert process.returncode == 42, output
  assert "to resume: python" in output and f"--workdir={sweep.folder}" in output
  records = [trials.read_record(path) for path in sweep.folder.glob("trials/*")]
  # The sweep asked them to save.
  assert [(record.status, record.exit_code) for record in records] == [("stopped", 42)] * 2
  sweep.hold.unlink()
  assert sweep.run() == 0
  assert sweep.statuses() == ["done"] * 4
  begun = {record.id for record in records}
  for name, begins in sweep.logs().items():
    assert begins == ([0, 3] if name in begun else [0])
    assert sweep.steps(name) == [1, 2, 3]


def test_trials_of_a_killed_sweep_save_and_do_not_run_twice_at_a_time(sweep):
  sweep.write_held(params=["train.steps = 4", f"hold = '{sweep.hold}'"], grid={"lr": [0.1]})
  process = sweep.start_held()
  process.kill()
  process.communicate()
  assert sweep.run() == 0
  for name, begins in sweep.logs().items():
    assert begins == [0, 3]
    assert sweep.steps(name) == [1, 2, 3, 4]
  assert [trial.last_step for trial in sweep.study().trials] == [4, 4]


def test_a_second_signal_kills_the_trials(sweep, tmp_path):
  experiment = tmp_path / "deaf.py"
  experiment.write_text("import signal, sys, time\nif '--explain' in sys.argv: sys.exit()\n"
                        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
                        "print('from step 0', flush=True)\ntime.sleep(600)\n")
  sweep.write(experiment=str(experiment))

  def interrupt():
    wait_until(lambda: list(sweep.logs().values()) == [[0], [0]])
    os.kill(os.getpid(), signal.SIGINT)
    wait_until((sweep.folder / trial_process.STOP).exists)
    time.sleep(0.7)  # What comes sooner is the same signal.
    os.kill(os.getpid(), signal.SIGINT)

  thread = threading.Thread(target=interrupt)
  thread.start()
  assert sweep.run() == 42
  thread.join()
  assert sweep.statuses() == ["stopped", "stopped"]


def test_only_one_sweep_runs_in_a_folder(sweep, monkeypatch):
  monkeypatch.setattr(claim, "WAIT_SECONDS", 0.0)
  with lock.owned(sweep.folder):
    assert sweep.run() == 2
  assert f"--workdir={sweep.folder}: is in use by process {os.getpid()} " in sweep.err
