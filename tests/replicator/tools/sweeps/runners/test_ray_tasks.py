"""Sweeps of a tiny experiment on Ray."""

import os
import signal
import types

from replicator.tools import ray_cluster
from tests.programs.processes import wait_until

import pytest


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
  monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.mark.slow
def test_a_trial_resumes_when_its_worker_dies_and_all_save_on_ctrl_c(sweep):
  # One cluster for both: it takes seconds to start.
  process = sweep.write_held().start_held("--runner=ray")
  lost = min(sweep.folder.glob("trials/*"))
  os.kill(int((lost / "parent").read_text()), signal.SIGKILL)
  wait_until(lambda: sweep.statuses().count("done") == 1 or process.poll() is not None)
  assert sweep.logs()[lost.name] == [0, 3] and sweep.steps(lost.name) == [1, 2, 3]
  wait_until(lambda: sweep.is_held() or process.poll() is not None)
  os.killpg(process.pid, signal.SIGINT)  # As a terminal does.
  output, _ = process.communicate()
  assert process.returncode == 42, output
  assert "1 of 4 done, 2 stopped" in output
  assert sweep.statuses() == ["done", "stopped", "stopped"]
  assert all(sweep.steps(name) == [1, 2, 3] for name in sweep.logs())


class NodeDied(Exception):
  """An error of Ray."""


@pytest.fixture
def pretend(monkeypatch):
  """A function that makes a pretended cluster, on which `wait` and `get` are as given."""
  asked: list[dict] = []  # The resources that tasks ask for.

  def make(wait, get=None) -> list[dict]:
    monkeypatch.setattr(ray_cluster, "connect", lambda *_, **__: types.SimpleNamespace(
      remote=lambda **resources: lambda function: types.SimpleNamespace(
          remote=lambda *_: asked.append(resources)),
      wait=wait, get=get, cluster_resources=lambda: {"CPU": 4.0, "GPU": 2.0}, shutdown=lambda: None,
      exceptions=types.SimpleNamespace(RayError=NodeDied)))
    monkeypatch.setenv("RAY_ADDRESS", "ray.example:6379")
    return asked
  return make


def test_a_stopped_sweep_does_not_wait_for_room_on_the_cluster(sweep, pretend):
  pretend(wait=lambda tasks, **_: ([], tasks))

  assert sweep.run_stopped(lambda: len(sweep.statuses()) == 2, signal.SIGINT, "--runner=ray") == 42
  assert "0 of 4 done, 2 stopped" in sweep.out


def test_a_trial_that_ray_gives_up_has_failed(sweep, pretend):
  def get(task):
    raise NodeDied("the node is gone")
  asked = pretend(wait=lambda tasks, **_: (tasks, []), get=get)
  assert sweep.write(seeds=[1]).run("--runner=ray") == 1
  assert [each["num_gpus"] for each in asked] == [1, 1]  # Each its own, as there are some.
  assert "its Ray task failed: NodeDied: the node is gone" in sweep.out
  assert "; --retry_failed runs the 2 failed trials again\n" in sweep.out
  assert sweep.statuses() == ["failed", "failed"]
