"""Environments that do not answer: they fail after some seconds, and a signal ends the wait."""

import concurrent.futures
import os
import signal
import subprocess
import sys
import time

from models.rl.environments import own_process, timeout
from models.rl.environments.environments import Environments
from models.rl.environments.vector import EnvironmentsLost
from replicator import processes
from replicator.training.preemption import StopSignal
from tests.programs.refusals import refusal

import gymnasium
import numpy as np
import pytest


class Stuck(gymnasium.Env):
  """Waits at a step for a simulator that has gone, and hides errors if it is `stubborn`."""

  observation_space = gymnasium.spaces.Box(-1, 1, [1])
  action_space = gymnasium.spaces.Box(-1, 1, [1])

  def __init__(self, at: int = 2, stubborn: tuple[type[BaseException], ...] = (),
               pause: float = 0.0):
    self._at, self._stubborn, self._pause = at, stubborn, pause
    if at < 0:
      self._wait()

  def reset(self, *, seed=None, options=None):
    self._step = 0
    return np.zeros(1, np.float32), {}

  def step(self, action):
    self._step += 1
    time.sleep(self._pause)
    if self._step == self._at and action > 0:
      self._wait()
    return np.full(1, self._step / 9, np.float32), 1.0, False, False, {}

  def _wait(self):
    while True:
      try:
        time.sleep(1e6)
      except self._stubborn as error:
        del error


@pytest.fixture(autouse=True)
def registered(monkeypatch):
  gymnasium.register("Stuck-v0", Stuck, max_episode_steps=9)
  monkeypatch.setattr(timeout, "_TICK", 0.02)
  yield
  gymnasium.registry.pop("Stuck-v0")


def column(*numbers: float) -> np.ndarray:
  return np.array(numbers, np.float32)[:, np.newaxis]


@pytest.mark.parametrize("stubborn", [(), (Exception,)])
def test_a_step_that_does_not_return_fails_and_the_others_go_on(stubborn):
  environments = Environments("Stuck-v0", 2, step_timeout=0.2, kwargs={"stubborn": stubborn})
  environments.reset({0: 1, 1: 2})
  environments.step(column(0, 0))
  outcome = environments.step(column(1, -1))
  assert outcome.failures == {
      0: "TookTooLong: it took more than Environments.step_timeout = 0.2 seconds"}
  np.testing.assert_allclose(outcome.observation[1], 2 / 9, rtol=1e-6)
  _, failures = environments.reset({0: 3})
  assert not failures and not environments.step(column(-1, -1)).failures


def test_an_environment_that_is_never_made_is_refused():
  assert refusal(Environments, "Stuck-v0", step_timeout=0.2, kwargs={"at": -1}) == (
      "Environments.name = 'Stuck-v0' cannot be made: it took more than Environments.step_timeout "
      "= 0.2 seconds")


def test_many_short_steps_are_no_long_one():
  environments = Environments("Stuck-v0", 2, step_timeout=0.2, kwargs={"pause": 0.03})
  environments.reset({0: 1, 1: 2})
  for _ in range(8):
    assert not environments.step(column(-1, -1)).failures


def test_another_thread_has_no_limit():
  with concurrent.futures.ThreadPoolExecutor(1) as pool:
    def wait():
      with timeout.Timeout("x", 0.05):
        time.sleep(0.5)
    assert pool.submit(wait).result() is None


@pytest.mark.parametrize("vectorization", [
    "sync", pytest.param("async", marks=pytest.mark.slow)])
def test_a_signal_ends_the_wait(vectorization, monkeypatch):
  monkeypatch.setattr(processes, "GIVING_UP_SECONDS", 0.1)
  for module in (timeout, own_process):
    monkeypatch.setattr(module, "GRACE", 0.1)
  environments = Environments("Stuck-v0", 1, vectorization)
  environments.reset({0: 1})
  environments.step(column(1))
  with StopSignal(lambda line: None, alone=True) as stop, \
      pytest.raises(processes.GivenUp, match=r"Stuck-v0.* does not answer"):
    os.kill(os.getpid(), signal.SIGTERM)
    environments.step(column(1))
  assert stop.received and not processes.gives_up()
  environments.close()


@pytest.mark.slow
def test_a_process_that_does_not_answer_is_lost_and_named(monkeypatch):
  monkeypatch.setattr(own_process, "GRACE", 0.5)
  environments = Environments("Stuck-v0", 2, "async", step_timeout=1.0,
                              kwargs={"stubborn": (BaseException,)})
  environments.reset({0: 1, 1: 2})
  environments.step(column(1, 1))
  with pytest.raises(EnvironmentsLost, match="Stuck-v0: environment 1 does not answer"):
    environments.step(column(-1, 1))
  _, failures = environments.reset({0: 1, 1: 2})
  assert not failures
  environments.close()


CODE = """
from models.rl.environments import timeout
from models.rl.environments.environments import Environments
from tests.models.rl.environments.test_timeout import Stuck, column
import gymnasium
timeout.GRACE = 0.3
gymnasium.register("Stuck-v0", Stuck)
environments = Environments("Stuck-v0", step_timeout=0.2, kwargs={"stubborn": (BaseException,)})
environments.reset({0: 1})
environments.step(column(1)), environments.step(column(1))
"""


@pytest.mark.slow
def test_a_process_that_cannot_be_interrupted_ends_with_a_line():
  ended = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=100)
  assert ended.returncode == 1
  assert ended.stderr.splitlines()[-1].startswith("error: Stuck-v0: an environment does not return")
