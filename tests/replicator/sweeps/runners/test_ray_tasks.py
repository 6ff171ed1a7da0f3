"""Sweeps of a tiny experiment on Ray."""

import os
import signal
import threading
import types

import pytest

from replicator import ray_cluster


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
  monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_a_trial_resumes_when_its_worker_dies_and_all_save_on_ctrl_c(sweep):
  sweep.write(params=[f"hold = '{sweep.hold}'"])
  sweep.hold.touch()
  process = sweep.start("--runner=ray")  # One cluster for both: it takes seconds to start.
  sweep.wait_for(lambda: sweep.is_held(2) or process.poll() is not None)
  lost = min(sweep.folder.glob("trials/*"))
  os.kill(int((lost / "parent").read_text()), signal.SIGKILL)
  sweep.wait_for(lambda: sweep.statuses().count("done") == 1 or process.poll() is not None)
  assert sweep.logs()[lost.name] == [0, 3] and sweep.steps(lost.name) == [1, 2, 3]
  sweep.wait_for(lambda: sweep.is_held(2) or process.poll() is not None)
  os.killpg(process.pid, signal.SIGINT)  # As a terminal does.
  output, _ = process.communicate()
  assert process.returncode == 42, output
  assert "1 of 4 done, 2 stopped" in output
  assert sweep.statuses() == ["done", "stopped", "stopped"]
  assert all(sweep.steps(name) == [1, 2, 3] for name in sweep.logs())


def test_a_stopped_sweep_does_not_wait_for_room_on_the_cluster(sweep, monkeypatch):
  full = types.SimpleNamespace(
    remote=lambda **_: lambda function: types.SimpleNamespace(remote=lambda *_: object()),
    wait=lambda tasks, **_: ([], tasks), cluster_resources=lambda: {"CPU": 4.0},
    shutdown=lambda: None)
  monkeypatch.setattr(ray_cluster, "connect", lambda *_, **__: full)
  monkeypatch.setenv("RAY_ADDRESS", "ray.example:6379")

  def interrupt():
    sweep.wait_for(lambda: len(sweep.statuses()) == 2)
    os.kill(os.getpid(), signal.SIGINT)

  thread = threading.Thread(target=interrupt)
  thread.start()
  assert sweep.run("--runner=ray") == 42
  thread.join()
  assert "0 of 4 done, 2 stopped" in sweep.out
