"""Looks up environments of Gymnasium and Shimmy by name, and checks for required packages."""

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from models.rl.environments import rendering
from replicator import UsageError
from replicator.errors import first_line, nearest

if TYPE_CHECKING:
  from models.rl.environments.wrapper import EnvironmentWrapper

  from gymnasium.envs.registration import EnvSpec

_EXTRAS = {  # The extra that installs each package.
    **dict.fromkeys(("gymnasium", "dm_control", "shimmy", "mujoco", "pygame"), "rl"),
    **dict.fromkeys(("ale_py", "cv2", "minatar"), "atari")}


def spec_of(name: str) -> "EnvSpec":
  """Returns the Gymnasium specification of a name, including Shimmy's environments.

  Raises:
    UsageError: there is no such environment, or a required package is not installed.
  """
  registry = _import("gymnasium", name).envs.registration.registry
  module, _, identity = name.rpartition(":")
  of_dm_control = identity.startswith("dm_control/")
  for needed in ["dm_control", "shimmy"] if of_dm_control else []:
    _import(needed, name)
  if module:
    imported = _import(module, name)
    if identity not in registry and hasattr(imported, "register_envs"):  # MinAtar's way.
      imported.register_envs()
  if identity not in registry:
    known = [known for known in registry if known.startswith("dm_control/") == of_dm_control]
    hint = nearest(identity, known, cutoff=0.65) or " gymnasium.pprint_registry() lists all."
    of_package = "" if module or of_dm_control else (
        " One that a module registers is written 'module:Name-v0', as 'ale_py:ALE/Pong-v5'.")
    raise UsageError(f"Environments.name = '{name}': there is no such environment.{hint}"
                     f"{of_package}")
  return registry[identity]


def check_wrappers(wrappers: Mapping[str, Any]) -> None:
  """Raises a UsageError if a wrapper does not exist."""
  from gymnasium.envs.registration import load_env_creator
  for path in wrappers:
    try:
      load_env_creator(path)
    except (ValueError, ImportError, AttributeError) as error:
      why = "" if isinstance(error, ValueError) else f": {first_line(error)}"
      raise UsageError(f"Environments.wrappers: '{path}' cannot be loaded{why}; use "
                       "'module:Class', such as 'gymnasium.wrappers:ClipReward'") from error


def _import(module: str, name: str) -> Any:
  try:
    with rendering.opengl(rendering.NOTHING):
      return importlib.import_module(module)
  except ImportError as error:
    missing = error.name or module
    remedy = (_installed(missing) if missing in _EXTRAS else
              f"install it, or start in a folder where Python finds a module {missing}")
    raise UsageError(f"Environments.name = '{name}' needs {missing}, which is not installed; "
                     f"{remedy}") from error


def _installed(package: str) -> str:
  return f"pip install 'replicator[{_EXTRAS[package]}]'"


def made(name: str, make: "Callable[[], EnvironmentWrapper]") -> "EnvironmentWrapper":
  """Makes an environment of a known name.

  Raises:
    UsageError: the environment cannot be made; the message says why.
  """
  try:
    with rendering.opengl(rendering.NOTHING):  # It may import MuJoCo.
      return make()
  except UsageError:
    raise
  except Exception as error:
    missing = [package for package, word in (("mujoco", "mujoco"), ("pygame", "pygame"),
                                             ("cv2", "opencv")) if word in str(error).lower()]
    if missing and (isinstance(error, ImportError)
                    or type(error).__name__ == "DependencyNotInstalled"):  # Gymnasium's.
      raise UsageError(f"Environments.name = '{name}' needs {missing[0]}, which is not installed; "
                       f"{_installed(missing[0])}") from error
    raise UsageError(f"Environments.name = '{name}' cannot be made: {type(error).__name__}: "
                     f"{first_line(error)}{_in_use(error)}") from error


def _in_use(error: Exception) -> str:
  """Returns advice if only one environment can exist, such as a simulator on a fixed port."""
  if "in use" not in str(error):
    return ""
  return ("; another environment of this run may be using it: Environments.number are for acting, "
          "and EpisodeEvaluator.environments, by default 20, for evaluation; set both to 1, and "
          "EpisodeEvaluator.lifetime = 'alone'")
