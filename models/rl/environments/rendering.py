"""Frames of environments, rendered in a process of their own.

MuJoCo renders with OpenGL, and loads the library that MUJOCO_GL names when it is imported. A wrong
library may end the process. A right one that compiles with LLVM, such as Mesa's, crashes a process
that has loaded TensorFlow. So the training process loads none.
"""

import contextlib
import functools
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from replicator.errors import first_line

import numpy as np

if TYPE_CHECKING:
  from models.rl.environments.wrapper import EnvironmentSettings

NOTHING = "disable"
"""The MUJOCO_GL of processes that render nothing."""

_CANDIDATES = ("egl", "osmesa")
_TRY = """
import os
import mujoco
context = mujoco.GLContext(8, 8)
context.make_current()
mujoco.MjrContext(mujoco.MjModel.from_xml_string("<mujoco/>"), mujoco.mjtFontScale.mjFONTSCALE_100)
os._exit(0)  # Some drivers fail when they are unloaded.
"""
_SECONDS = 120.0  # For one episode; most of it is the start of the process.


@contextlib.contextmanager
def opengl(name: str) -> Iterator[None]:
  """Sets MUJOCO_GL to `name` inside, for imports of MuJoCo here and in processes started here."""
  before = os.environ.get("MUJOCO_GL")
  os.environ["MUJOCO_GL"] = name
  try:
    yield
  finally:
    del os.environ["MUJOCO_GL"]
    if before is not None:
      os.environ["MUJOCO_GL"] = before


@functools.cache
def working_opengl() -> str:
  """The MUJOCO_GL that works here: the user's if set, else 'egl' or 'osmesa'; else 'disable'."""
  candidates = [os.environ["MUJOCO_GL"]] if os.environ.get("MUJOCO_GL") else _CANDIDATES
  return next((name for name in candidates if _works(name)), NOTHING)


def frames(settings: "EnvironmentSettings", seed: int, actions: np.ndarray, steps: Sequence[int],
           height: int) -> tuple[list[np.ndarray], str]:
  """Renders the episode of a seed and all of its actions, float32 `[t, a]`, at some moments.

  `steps` are ascending numbers in 0..t, of actions that come before a frame. Returns uint8
  `[height, w, 3]` for each, and ''; or no frame, and the reason.
  """
  import cloudpickle
  settings = settings._replace(render=True, pixels=None)
  try:
    task = cloudpickle.dumps((settings, seed, actions, list(steps), height))
  except Exception as error:  # Any type: it depends on the user's environment.
    return [], ("it cannot be sent to the process that renders: "
                f"{type(error).__name__}: {first_line(error)}")
  try:
    return pickle.loads(subprocess.run(
        [sys.executable, "-m", __name__], input=task, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # Drivers print messages of their own.
        env={**os.environ, "MUJOCO_GL": working_opengl(), "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=_SECONDS, start_new_session=True).stdout)
  except subprocess.TimeoutExpired:
    return [], f"no frame within {_SECONDS:.0f} seconds"
  except EOFError:
    return [], "the process that renders ended"


def prepare_pygame() -> None:
  """Makes pygame, which renders classic control, work silently and without a display."""
  os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
  os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")


def _render() -> None:
  """In the process that renders: plays the episode, and prints what `frames` returns, pickled."""
  out = os.fdopen(os.dup(1), "wb")
  os.dup2(2, 1)  # Whatever else prints.
  prepare_pygame()
  try:
    from models.rl.environments.wrapper import EnvironmentWrapper, frame_of

    import cloudpickle
    settings, seed, actions, steps, height = cloudpickle.loads(sys.stdin.buffer.read())
    environment = EnvironmentWrapper(settings)
    environment.reset(seed=seed)
    rendered, taken = [], 0
    for step in steps:
      for action in actions[taken:step]:
        environment.step(action)
      taken = step
      rendered.append(frame_of(environment.env, height))
    result = rendered, ""
  except Exception as error:
    result = [], f"{type(error).__name__}: {first_line(error)}"
  with out:
    pickle.dump(result, out)
  os._exit(0)  # Some drivers fail when they are unloaded.


def _works(name: str) -> bool:
  try:
    tried = subprocess.run([sys.executable, "-c", _TRY], env={**os.environ, "MUJOCO_GL": name},
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL, timeout=60)
  except subprocess.TimeoutExpired:
    return False
  return tried.returncode == 0


if __name__ == "__main__":
  _render()
