"""One line for modules of this project that a package of the user's hides.

`models` and `experiments` are namespace packages: with folders of these names elsewhere on the path
they make one package, but an `__init__.py` in one of them ends that.
"""

import importlib.abc
import sys
from typing import Any

from replicator.console.gin_files import OURS


class _Finder(importlib.abc.MetaPathFinder):
  """Called for modules that no other finder has found."""

  def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
    """Raises a ModuleNotFoundError for a module that is hidden."""
    top = name.partition(".")[0]
    init = getattr(sys.modules.get(top), "__file__", None)
    ours = OURS / name.replace(".", "/")
    if top in ("models", "experiments") and init and (
        ours.is_dir() or ours.with_suffix(".py").is_file()):
      raise ModuleNotFoundError(
          f"{name} is hidden by {init}; remove that file, or write this in it: import pkgutil; "
          "__path__ = pkgutil.extend_path(__path__, __name__)")


def explain_hidden_modules() -> None:
  """Makes imports of hidden modules say what hides them."""
  if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
    sys.meta_path.append(_Finder())
