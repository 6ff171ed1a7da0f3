"""Finds modules of this project that one of the user's packages would hide.

`models` and `experiments` are namespace packages: they merge with folders of the same names
elsewhere on the path, unless one of those has an `__init__.py`. In an editable install, this
project's modules are found anyway; with this finder, they are found in any install.
"""

import importlib.abc
import importlib.machinery
import sys
from typing import Any

from replicator.console.gin_files import OURS


class _Finder(importlib.abc.MetaPathFinder):
  """The last finder, for modules that no other finder has found, so that the user's come first."""

  def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
    """Finds this project's `models.NAME` or `experiments.NAME`, if a package hides it."""
    top = name.partition(".")[0]
    is_hidden = top in ("models", "experiments") and name.count(".") == 1 and getattr(
        sys.modules.get(top), "__file__", None)
    return importlib.machinery.PathFinder.find_spec(name, [str(OURS / top)]) if is_hidden else None


def find_hidden_modules() -> None:
  """Makes imports find hidden modules from now on."""
  if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
    sys.meta_path.append(_Finder())
