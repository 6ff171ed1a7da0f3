"""Where public names went: modules, what they hold, and what gin files name, as `moved.json` says.

A program or a gin file that uses an old name gets one line with the new one. The `config.gin` of an
earlier run is read as if it had the new names. A package of the user's that hides a module of this
project gets a line, too.
"""

import importlib.abc
import importlib.util
import json
import pathlib
import sys
from typing import Any

_TABLE = json.loads(pathlib.Path(__file__).with_suffix(".json").read_text())
MODULES: dict[str, str] = {f"{package}.{old}": f"{package}.{new}"
                           for package, moved in _TABLE["modules"].items()
                           for old, new in moved.items()}
"""The full names of modules, new by old. An old one may be a package today."""

NAMES: dict[str, str] = _TABLE["names"]
"""The full names of what modules hold, and of gin's `configurable.parameter`s, new by old."""

GONE: dict[str, str] = _TABLE["gone"]
"""The full names that have no successor, and what to write in their place."""


def new_name(name: str) -> str | None:
  """The new name of an old one, both as gin files write them: cut in front; None for any other."""
  found = next((new for old, new in NAMES.items() if _ends(old, name)), None)
  module, _, last = name.rpartition(".")
  if module and not found:
    found = next((f"{new}.{last}" for old, new in MODULES.items() if _ends(old, module)), None)
  return found


def remedy(name: str) -> str | None:
  """The advice for a name that is gone, which may be cut in front; None for any other name."""
  return next((remedy for old, remedy in GONE.items() if _ends(old, name)), None)


def _ends(full: str, name: str) -> bool:
  """Whether a full name may be written as `name` in a gin file."""
  return f".{full}".endswith(f".{name}")


def say_where(module: str) -> None:
  """Makes the old names of `module`, which runs now, raise errors that name the new ones."""
  running = sys.modules[module]
  found = getattr(running, "__getattr__", None)

  def attribute(name: str) -> Any:
    if line := _line(f"{module}.{name}"):
      raise ImportError(line)
    if found:
      return found(name)
    if not name.startswith("_"):
      importlib.util.find_spec(f"{module}.{name}")  # Raises an error for a name that has moved.
    raise AttributeError(f"module '{module}' has no attribute '{name}'", name=name, obj=running)

  running.__getattr__ = attribute  # type: ignore[method-assign]


def _line(name: str) -> str | None:
  """One line on a full name that has moved or is gone; None for any other."""
  if new := MODULES.get(name) or NAMES.get(name):
    return f"{name} has moved: write {new}"
  return f"{name} is gone: {GONE[name]}" if name in GONE else None


def _hidden(name: str) -> str | None:
  """One line on a module of this project that a package of the user's hides; None for any other.

  `models` and `experiments` are namespace packages: with folders of these names elsewhere on the
  path they make one package, but an `__init__.py` ends that.
  """
  top = name.partition(".")[0]
  init = getattr(sys.modules.get(top), "__file__", None)
  ours = pathlib.Path(__file__).parents[1] / name.replace(".", "/")
  if top not in ("models", "experiments") or not init or not (
      ours.is_dir() or ours.with_suffix(".py").is_file()):
    return None
  return (f"{name} is hidden by {init}; remove that file, or write this in it: import pkgutil; "
          "__path__ = pkgutil.extend_path(__path__, __name__)")


class _Finder(importlib.abc.MetaPathFinder):
  """Is asked for a module after all who find modules."""

  def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
    """Raises an error for a module that is hidden or has moved, or for a name that was in one."""
    package, _, last = name.rpartition(".")
    line = _hidden(name) or _line(name)
    if package in MODULES and not last.startswith("_"):
      new = MODULES[package]
      if hasattr(importlib.import_module(new), last):
        line = f"{name} has moved: write {new}.{last}"
    if line:
      raise ModuleNotFoundError(line)


sys.meta_path.append(_Finder())
