"""Drawing environments, always in a process of its own.

MuJoCo draws with OpenGL, and loads the library that MUJOCO_GL names when it is imported. A wrong
one may end the process; a right one that compiles with LLVM, such as Mesa's, makes one crash that
has TensorFlow in it. So the process that trains loads none.
"""

import contextlib
import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import types
from collections.abc import Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
  from models.rl.environment_wrapper import EnvironmentSettings

NOTHING = "disable"
"""The MUJOCO_GL of processes that draw nothing."""

_TRIED = ("egl", "osmesa")
_TRY = """
import os
import mujoco
context = mujoco.GLContext(8, 8)
context.make_current()
mujoco.MjrContext(mujoco.MjModel.from_xml_string("<mujoco/>"), mujoco.mjtFontScale.mjFONTSCALE_100)
os._exit(0)  # Some drivers fail when they are unloaded.
"""
_SECONDS = 120.0  # For a film, of which most is the start of the process.


@contextlib.contextmanager
def opengl(name: str) -> Iterator[None]:
  """Inside, MuJoCo is imported with this MUJOCO_GL, also by processes that are started."""
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
  """The MUJOCO_GL that draws here: the user's if set, else 'egl' or 'osmesa'; else 'disable'."""
  tried = [os.environ["MUJOCO_GL"]] if os.environ.get("MUJOCO_GL") else _TRIED
  return next((name for name in tried if _works(name)), NOTHING)


def frames(settings: "EnvironmentSettings", seed: int, actions: np.ndarray, steps: Sequence[int], height: int
           ) -> tuple[list[np.ndarray], str]:
  """What an episode looked like.

  Args:
    settings: of the environment.
    seed: that the episode began with.
    actions: float32 `[t, a]`, all of it.
    steps: ascending, in 0..t; after so many actions the pictures are taken.
    height: of the pictures, in pixels.

  Returns:
    uint8 `[height, w, 3]` for each of `steps`, and ''; or none, and why not.
  """
  import cloudpickle
  settings = settings._replace(render=True, pixels=None)
  try:
    task = cloudpickle.dumps((settings, seed, actions, list(steps), height))
  except Exception as error:  # Of any kind, by what a user's environment is made of.
    return [], f"it cannot be sent to the process that draws: {_in_one_line(error)}"
  context = multiprocessing.get_context("spawn")
  receiver, sender = context.Pipe(duplex=False)
  process = context.Process(target=_draw, args=(sender, task), daemon=True)
  with opengl(working_opengl()), interrupts_withheld(), main_module_hidden():
    process.start()
  sender.close()
  try:
    if not receiver.poll(_SECONDS):
      return [], f"no picture within {_SECONDS:.0f} seconds"
    return receiver.recv()
  except EOFError:
    return [], "the process that draws ended"
  finally:
    process.kill()
    process.join()
    receiver.close()


@contextlib.contextmanager
def main_module_hidden() -> Iterator[None]:
  """Processes started inside do not run the experiment's own file, which imports TensorFlow."""
  blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
  resource_tracker.ensure_running()  # Unblocks signals when it starts, which must not be later.
  signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
  main = sys.modules["__main__"]
  sys.modules["__main__"] = types.ModuleType("__main__")
  try:
    yield
  finally:
    sys.modules["__main__"] = main


@contextlib.contextmanager
def interrupts_withheld() -> Iterator[None]:
  """Processes started inside never see Ctrl-C, which goes to all: the one that trains ends them."""
  before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # Is inherited.
  try:
    yield
  finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def prepare_pygame() -> None:
  """Lets pygame, which draws classic control, do without a display and say nothing."""
  os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
  os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")


def _draw(sender: Connection, task: bytes) -> None:
  """In the process that draws: plays the episode, and sends what `frames` returns."""
  null = os.open(os.devnull, os.O_WRONLY)
  os.dup2(null, 2)  # What a driver says of itself.
  prepare_pygame()
  try:
    import cloudpickle

    from models.rl.environment_wrapper import EnvironmentWrapper, frame_of
    settings, seed, actions, steps, height = cloudpickle.loads(task)
    environment = EnvironmentWrapper(settings)
    environment.reset(seed=seed)
    drawn, taken = [], 0
    for step in steps:
      for action in actions[taken:step]:
        environment.step(action)
      taken = step
      drawn.append(frame_of(environment.env, height))
    sender.send((drawn, ""))
  except Exception as error:
    sender.send(([], _in_one_line(error)))
  sender.close()
  os._exit(0)  # Some drivers fail when they are unloaded.


def _in_one_line(error: Exception) -> str:
  return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _works(name: str) -> bool:
  try:
    tried = subprocess.run([sys.executable, "-c", _TRY], env={**os.environ, "MUJOCO_GL": name},
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL, timeout=60)
  except subprocess.TimeoutExpired:
    return False
  return tried.returncode == 0
