"""Environments in separate processes, made by Gymnasium's `AsyncVectorEnv`."""

import multiprocessing
import os
import pickle
import signal
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import connection
from typing import Any

from models.rl.environments import rendering
from models.rl.environments.timeout import GRACE
from models.rl.environments.wrapper import EnvironmentSettings, EnvironmentWrapper, Facts
from replicator import UsageError, processes
from replicator.errors import first_line
from replicator.processes import end_with_parent, spawning

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv


class _Absent(gymnasium.Env):
  """A placeholder, with these spaces, for an environment that cannot be made; `reset` fails."""

  def __init__(self, observations: spaces.Space, actions: spaces.Space, why: str = ""):
    self.observation_space, self.action_space, self._why = observations, actions, why

  def reset(self, *, seed: int | None = None, options: dict | None = None
            ) -> tuple[np.ndarray, dict]:
    space: Any = self.observation_space
    return np.zeros(space.shape, space.dtype), {"error": self._why}


def make_alone(settings: EnvironmentSettings, observations: spaces.Space, actions: spaces.Space
               ) -> gymnasium.Env:
  """Makes the environment, whose spaces are known, if this is a child process.

  The child's stderr is silenced, because it would print a traceback if the trainer died.
  """
  if multiprocessing.parent_process() is None:  # Gymnasium only needs the spaces.
    return _Absent(observations, actions)
  sys.stderr = open(os.devnull, "w")  # noqa: SIM115
  try:
    return EnvironmentWrapper(settings)
  except Exception as error:
    return _Absent(observations, actions, f"{type(error).__name__}: {first_line(error)}")


def facts_of(settings: EnvironmentSettings, opengl: str) -> Facts:
  """Inspects an environment in a process with this MUJOCO_GL.

  Raises:
    UsageError: the environment cannot be made.
  """
  import cloudpickle  # Gymnasium depends on it.
  with rendering.opengl(opengl), spawning(signal.SIGINT), ProcessPoolExecutor(
      1, multiprocessing.get_context("spawn"), end_with_parent()) as executor:
    try:
      return executor.submit(_facts_of, cloudpickle.dumps(settings)).result()
    except Exception as error:
      raise UsageError(f"Environments.name = '{settings.name}' cannot be made, in a process "
                       f"that renders with MUJOCO_GL = '{opengl}': {type(error).__name__}: "
                       f"{first_line(error)}") from error


def _facts_of(settings: bytes) -> Facts:
  environment = EnvironmentWrapper(pickle.loads(settings))
  facts = environment.facts()
  environment.close()
  return facts


def wait_for_all(vector: AsyncVectorEnv, name: str, seconds: float | None) -> None:
  """Waits until all processes of a vector have answered.

  A process interrupts a slow step by itself if possible, so it gets somewhat more time than
  `seconds`. `name` is that of the environments.

  Raises:
    TimeoutError: one did not answer.
    GivenUp: one did not answer, and this process was asked to stop.
  """
  waiting = {pipe: number for number, pipe in enumerate(vector.parent_pipes)}
  looks = 0  # One per second; not a clock, because processes may be suspended for a while.
  while waiting:
    ready = connection.wait([*waiting], 1.0)
    for pipe in ready:
      del waiting[pipe]  # type: ignore[arg-type]
    looks = 0 if ready else looks + 1
    which = f"{name}: environment {min(waiting.values(), default=0)}"
    if seconds and looks >= seconds + 2 * GRACE:
      raise TimeoutError(f"{which} does not answer; a step or a reset may take "
                         f"Environments.step_timeout = {seconds:g} seconds")
    if looks >= GRACE and processes.gives_up():
      raise processes.GivenUp(f"{which} does not answer")
