"""Frames of environments, rendered in a separate process.

MuJoCo renders with OpenGL; when imported, it loads the library that MUJOCO_GL names. A wrong
library may end the process. A working one that uses LLVM, such as Mesa, crashes a process that has
loaded TensorFlow. So the training process loads none.
"""

import contextlib
import functools
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from replicator import UsageError
from replicator.errors import first_line

import numpy as np

if TYPE_CHECKING:
  from models.rl.environments.wrapper import EnvironmentSettings

NOTHING = "disable"
"""The MUJOCO_GL of processes that do not render."""

_CANDIDATES = ("egl", "osmesa")
_TRY = """
import os
import mujoco
context = mujoco.GLContext(8, 8)
context.make_current()
mujoco.MjrContext(mujoco.MjModel.from_xml_string("<mujoco/>"), mujoco.mjtFontScale.mjFONTSCALE_100)
os._exit(0)  # Some drivers fail when they are unloaded.
"""
_WIDEST = 6  # Maximum aspect ratio of frames.
_SECONDS = 120.0  # For one episode; most of it is for starting the process.


@contextlib.contextmanager
def opengl(name: str) -> Iterator[None]:
  """Sets MUJOCO_GL to `name` in a context, for imports of MuJoCo here and in new processes."""
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
  """Returns a working MUJOCO_GL: the user's if set, else 'egl' or 'osmesa'; else 'disable'."""
  candidates = [os.environ["MUJOCO_GL"]] if os.environ.get("MUJOCO_GL") else _CANDIDATES
  return next((name for name in candidates if _works(name)), NOTHING)


def opengl_of_processes() -> str:
  """Returns the MUJOCO_GL for processes of environments that render observations.

  Raises:
    UsageError: the user's MUJOCO_GL does not work.
  """
  prepare_pygame()
  name = working_opengl()
  if name == NOTHING and "MUJOCO_GL" in os.environ:
    raise UsageError(f"MUJOCO_GL = '{os.environ['MUJOCO_GL']}' cannot render here, but the "
                     "observations must be rendered; unset it, and a working one is found")
  return name


def frames(settings: "EnvironmentSettings", seed: int, actions: np.ndarray, steps: Sequence[int],
           height: int) -> tuple[list[np.ndarray], str]:
  """Replays an episode, given its seed and actions float32 `[t, a]`, and renders some steps.

  `steps` are ascending numbers in 0..t: how many actions precede each frame. Returns frames uint8
  `[height, w, 3]` and ''; or no frames and the reason. All have the size of the first. Very wide
  frames are scaled down.
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
        stderr=subprocess.DEVNULL,  # Drivers print messages.
        env={**os.environ, "MUJOCO_GL": working_opengl(), "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=_SECONDS, start_new_session=True).stdout)
  except subprocess.TimeoutExpired:
    return [], f"no frame within {_SECONDS:.0f} seconds"
  except EOFError:
    return [], "the process that renders ended"


def rendered(settings: "EnvironmentSettings", seed: int, actions: np.ndarray, steps: Sequence[int],
             height: int) -> list[np.ndarray]:
  """Does the same as `frames`, but in this process; lets the environment's errors propagate."""
  from models.rl.environments.wrapper import EnvironmentWrapper, frame_of
  environment = EnvironmentWrapper(settings)
  environment.reset(seed=seed)
  found: list[np.ndarray] = []
  size, taken = [height], 0
  for step in steps:
    for action in actions[taken:step]:
      environment.step(action)
    taken = step
    if not found:
      width = frame_of(environment.env, height).shape[1]
      shrunk = min(1.0, _WIDEST * height / width)
      size = [max(2, round(height * shrunk)), max(2, round(width * shrunk))]
    found.append(frame_of(environment.env, *size))
  return found


def prepare_pygame() -> None:
  """Makes pygame, which renders classic control, silent and independent of a display."""
  os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
  os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")


def _render() -> None:
  """Plays the episode in the rendering process, and writes the pickled result to stdout."""
  out = os.fdopen(os.dup(1), "wb")
  os.dup2(2, 1)  # Everything else that is printed goes to stderr.
  prepare_pygame()
  try:
    import cloudpickle
    result = rendered(*cloudpickle.loads(sys.stdin.buffer.read())), ""
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
