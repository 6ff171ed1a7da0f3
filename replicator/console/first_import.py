"""Runs code around the first import of a package."""

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

Run = Callable[[ModuleType, Callable[[], None]], None]


def around_first_import(name: str, run: Run, before: Callable[[], None] = lambda: None) -> None:
  """Calls `run(module, load)` when a package is first imported; `load()` loads it.

  `before` is called when the import begins. The package must not have been imported yet.
  """
  sys.meta_path.insert(0, _Finder(name, run, before))


class _Finder(importlib.abc.MetaPathFinder):
  """A finder that finds the package once and replaces its loader."""

  def __init__(self, name: str, run: Run, before: Callable[[], None]):
    self._name, self._run, self._before = name, run, before

  def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
    if name != self._name:
      return None
    sys.meta_path.remove(self)
    spec = importlib.util.find_spec(name)
    if spec and spec.loader:
      self._before()
      spec.loader = _Loader(spec.loader, self._run)
    return spec


class _Loader(importlib.abc.Loader):
  """A loader that calls `run` around the package's own loader."""

  def __init__(self, loader: Any, run: Run):
    self._loader, self._run = loader, run

  def create_module(self, spec: Any) -> Any:
    return self._loader.create_module(spec)

  def exec_module(self, module: ModuleType) -> None:
    module.__loader__ = module.__spec__.loader = self._loader  # type: ignore[union-attr]
    self._run(module, lambda: self._loader.exec_module(module))
