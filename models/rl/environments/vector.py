"""A vector of environments whose processes may die or hang."""

import contextlib
import functools
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from models.rl.environments import found_by_name, rendering
from replicator import UsageError
from replicator.processes import GivenUp, spawning

if TYPE_CHECKING:
  from models.rl.environments.wrapper import EnvironmentSettings

  from gymnasium import spaces
  from gymnasium.vector import VectorEnv


_START = 300.0  # Seconds that processes may take to start, including imports.


class EnvironmentsLost(Exception):
  """A process with an environment died. All environments must be reset."""


class Vector:
  """n environments that step together, made on first use.

  Args:
    settings: settings of each environment.
    number: n.
    spaces: observation and action space.
    has_processes: whether each has a separate process.
    renders: whether these processes render with OpenGL.
  """

  def __init__(self, settings: "EnvironmentSettings", number: int,
               spaces: "tuple[spaces.Space, spaces.Space]", has_processes: bool, renders: bool):
    self._settings, self._number, self._spaces = settings, number, spaces
    self._has_processes, self._renders = has_processes, renders
    self._vector: VectorEnv | None = None

  @property
  def processes(self) -> list[Any]:
    """The processes of the environments, if there are any."""
    return getattr(self._vector, "processes", [])

  @property
  def here(self) -> list[Any]:
    """The environments of this process, if there are any."""
    return [] if self._has_processes else list(getattr(self._vector, "envs", ()))

  def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
    """Calls `reset` or `step` of Gymnasium's vector; returns its result.

    Raises:
      EnvironmentsLost: a process with an environment died.
    """
    with self._lost_on_error():
      if self._vector is None:
        self._vector = self._made()
      if not self._has_processes:
        return getattr(self._vector, method)(*args, **kwargs)
      from models.rl.environments import own_process
      vector: Any = self._vector
      getattr(vector, f"{method}_async")(*args, **kwargs)
      own_process.wait_for_all(vector, self._settings.name, self._settings.step_timeout)
      return getattr(vector, f"{method}_wait")()

  def close(self) -> None:
    """Closes the environments. The next call makes new ones."""
    vector, self._vector = self._vector, None
    if vector is not None and not vector.closed:
      vector.close(**({"terminate": True} if self._has_processes else {}))

  def _made(self) -> "VectorEnv":
    from models.rl.environments.wrapper import EnvironmentWrapper

    from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
    if not self._has_processes:
      here = functools.partial(found_by_name.made, self._settings.name,
                               functools.partial(EnvironmentWrapper, self._settings))
      return SyncVectorEnv([here] * self._number, copy=False,
                           autoreset_mode=AutoresetMode.DISABLED)
    from models.rl.environments.own_process import make_alone
    from models.rl.environments.timeout import Timeout, TookTooLong
    opengl = rendering.opengl_of_processes() if self._renders else rendering.NOTHING
    there = functools.partial(make_alone, self._settings, *self._spaces)
    limit = self._settings.step_timeout and max(self._settings.step_timeout, _START)
    try:
      # Spawned, because TensorFlow's threads do not survive a fork.
      with (rendering.opengl(opengl), spawning(signal.SIGINT),
            Timeout(self._settings.name, limit)):
        return AsyncVectorEnv([there] * self._number, copy=False, context="spawn",
                              autoreset_mode=AutoresetMode.DISABLED)
    except TookTooLong as error:
      raise UsageError(f"Environments.name = '{self._settings.name}' cannot be made: its processes "
                       f"did not start within {limit:g} seconds") from error

  @contextlib.contextmanager
  def _lost_on_error(self) -> Iterator[None]:
    try:
      yield
    except (EOFError, OSError, GivenUp) as error:
      if not self._has_processes:
        raise
      self._kill()
      if isinstance(error, GivenUp):
        raise
      why = (str(error) if isinstance(error, TimeoutError) else
             f"{self._settings.name}: a process with an environment died")
      raise EnvironmentsLost(why) from error

  def _kill(self) -> None:
    processes, vector = self.processes, self._vector
    self._vector = None
    for process in processes:
      process.kill()
      process.join()
    if vector is not None:
      vector.closed = True
