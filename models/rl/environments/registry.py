"""Gymnasium's registry: from an environment's name to its specification, or to one clear error."""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from models.rl.environments import rendering
from replicator import UsageError
from replicator.errors import first_line, nearest

if TYPE_CHECKING:
  from gymnasium.envs.registration import EnvSpec

  from models.rl.environments.wrapper import EnvironmentWrapper

_INSTALL = "pip install -e '.[rl]'"


def find(name: str) -> "EnvSpec":
  """The specification that Gymnasium, with Shimmy's environments, has for a name.

  Raises:
    UsageError: there is no such environment, or a package that it needs is not installed.
  """
  registry = _import("gymnasium", name).envs.registration.registry
  module, _, identity = name.rpartition(":")
  of_dm_control = identity.startswith("dm_control/")
  for needed in ["dm_control", "shimmy"] if of_dm_control else []:
    _import(needed, name)
  if module:
    _import(module, name)
  if identity not in registry:
    known = [known for known in registry if known.startswith("dm_control/") == of_dm_control]
    raise UsageError(f"Environments.name = '{name}': there is no such environment."
                     f"{nearest(identity, known) or ' gymnasium.pprint_registry() lists all.'}")
  return registry[identity]


def _import(module: str, name: str) -> Any:
  try:
    with rendering.opengl(rendering.NOTHING):
      return importlib.import_module(module)
  except ImportError as error:
    raise UsageError(f"Environments.name = '{name}' needs {error.name or module}, which is not "
                     f"installed; {_INSTALL}") from error


def make_first(name: str, make: "Callable[[], EnvironmentWrapper]") -> "EnvironmentWrapper":
  """Calls `make` for an environment of a known name.

  Raises:
    UsageError: the environment cannot be made; the message says why.
  """
  try:
    with rendering.opengl(rendering.NOTHING):  # It may import MuJoCo.
      return make()
  except UsageError:
    raise
  except Exception as error:
    missing = [package for package in ("mujoco", "pygame") if package in str(error).lower()]
    if missing and (isinstance(error, ImportError)
                    or type(error).__name__ == "DependencyNotInstalled"):  # Gymnasium's.
      raise UsageError(f"Environments.name = '{name}' needs {missing[0]}, which is not installed; "
                       f"{_INSTALL}") from error
    raise UsageError(f"Environments.name = '{name}' cannot be made: {type(error).__name__}: "
                     f"{first_line(error)}") from error
