"""Keeps TensorFlow quiet and fast to import; `import replicator` before TensorFlow is enough.

Some lines of TensorFlow's start-up log are printed before any log level applies. So the standard
error of the import is collected, and shown only if the import fails.
"""

import contextlib
import faulthandler
import gc
import importlib.abc
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any


def quiet_tensorflow(before: Callable[[], None] = lambda: None) -> None:
  """Makes the first import of TensorFlow silent, unless it fails.

  Keras loads scikit-learn and matplotlib if they are there, which takes a third of the time, for
  its wrappers for scikit-learn and its galleries of pictures, and its old version loads SciPy. It
  does without them here; a program that needs these imports `sklearn` and `matplotlib.pyplot`
  first. `before` is called when the import begins, which takes seconds.
  """
  if "tensorflow" in sys.modules:
    _give_signals_a_stack()
    return
  # Errors (level 2) stay visible. A user who wants to see more sets the variable.
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
  sys.meta_path.insert(0, _Finder(before))


class _Finder(importlib.abc.MetaPathFinder):
  """Finds TensorFlow once, and gives it a loader that is quiet."""

  def __init__(self, before: Callable[[], None]):
    self._before = before

  def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
    if name != "tensorflow":
      return None
    sys.meta_path.remove(self)
    spec = importlib.util.find_spec(name)
    if spec and spec.loader:
      self._before()
      spec.loader = _Loader(spec.loader)
    return spec


class _Loader(importlib.abc.Loader):
  """Runs TensorFlow's own loader, and probes for accelerators."""

  def __init__(self, loader: Any):
    self._loader = loader

  def create_module(self, spec: Any) -> Any:
    return self._loader.create_module(spec)

  def exec_module(self, module: Any) -> None:
    module.__loader__ = module.__spec__.loader = self._loader
    _give_signals_a_stack()
    with _stderr_kept_for_errors(), _hidden(_OPTIONAL), _no_garbage():
      self._loader.exec_module(module)
      module.config.list_physical_devices()  # Probing for a GPU that is not there logs an error.
    module.get_logger().setLevel("ERROR")


def _give_signals_a_stack() -> None:
  """Makes signal handlers of this thread run on a stack of their own.

  Matrix products of oneDNN (TensorFlow 2.21, with AVX-512) keep numbers below the stack pointer,
  where a handler would overwrite them: a signal then corrupts a step, or ends the process.
  """
  if sys.__stderr__ and not faulthandler.is_enabled():
    with contextlib.suppress(OSError, RuntimeError, ValueError):  # It may be closed.
      faulthandler.enable(sys.__stderr__)  # Python has no other way to make such a stack.


_OPTIONAL = ("sklearn", "matplotlib", "scipy")  # What Keras can do without.


@contextlib.contextmanager
def _hidden(packages: Sequence[str]) -> Iterator[None]:
  """In the body, packages that are not imported yet are as if they were not installed."""
  hidden = {name: None for name in packages if name not in sys.modules}
  sys.modules.update(hidden)  # type: ignore[arg-type]
  try:
    yield
  finally:
    for name in hidden:
      del sys.modules[name]


@contextlib.contextmanager
def _no_garbage() -> Iterator[None]:
  """Exempts all that the body makes from garbage collection."""
  was_enabled = gc.isenabled()
  gc.disable()
  try:
    yield
  finally:
    gc.freeze()
    if was_enabled:
      gc.enable()


@contextlib.contextmanager
def _stderr_kept_for_errors() -> Iterator[None]:
  sys.stderr.flush()
  terminal = os.dup(2)
  with tempfile.TemporaryFile() as kept:
    os.dup2(kept.fileno(), 2)
    try:
      yield
    except BaseException:
      os.dup2(terminal, 2)
      kept.seek(0)
      shutil.copyfileobj(kept, sys.stderr.buffer)
      raise
    finally:
      os.dup2(terminal, 2)
      os.close(terminal)
