"""Keeps TensorFlow quiet and fast to import, if `replicator` is imported before TensorFlow.

Some lines of TensorFlow's startup log are printed before any log level applies. So the standard
error output of the import is captured, and is shown only if the import fails.
"""

import contextlib
import faulthandler
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from replicator.console.first_import import around_first_import


def quiet_tensorflow(before: Callable[[], None] = lambda: None,
                     after: Callable[[], None] = lambda: None) -> None:
  """Makes the first import of TensorFlow silent, unless it fails.

  If scikit-learn and matplotlib are installed, Keras imports them for its scikit-learn wrappers and
  image galleries, which takes a third of the import time; old versions of Keras also import SciPy.
  So these packages are hidden from Keras; a program that needs the features imports `sklearn` and
  `matplotlib.pyplot` first. Calls `before` when the import begins, and `after` when it ends,
  seconds later.
  """
  if "tensorflow" in sys.modules:
    _give_signals_a_stack()
    return
  # Errors (level 2) stay visible. A user who wants to see more sets the variable.
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

  def run(tensorflow: Any, load: Callable[[], None]) -> None:
    _load_quietly(tensorflow, load)
    after()

  around_first_import("tensorflow", run, before)


def _load_quietly(tensorflow: Any, load: Callable[[], None]) -> None:
  """Imports TensorFlow, and probes for accelerators."""
  _give_signals_a_stack()
  with _stderr_kept_for_errors(), _hidden(_OPTIONAL), _no_garbage():
    load()
    tensorflow.config.list_physical_devices()  # Probing for a GPU that is not there logs an error.
  tensorflow.get_logger().setLevel("ERROR")


def _give_signals_a_stack() -> None:
  """Makes signal handlers of this thread run on a separate stack.

  Matrix products of oneDNN (TensorFlow 2.21, with AVX-512) keep numbers below the stack pointer,
  where a handler would overwrite them: a signal would then corrupt a step, or end the process.
  """
  if sys.__stderr__ and not faulthandler.is_enabled():
    with contextlib.suppress(OSError, RuntimeError, ValueError):  # It may be closed.
      faulthandler.enable(sys.__stderr__)  # Python has no other way to set up such a stack.


_OPTIONAL = ("sklearn", "matplotlib", "scipy")  # Optional for Keras.


@contextlib.contextmanager
def _hidden(packages: Sequence[str]) -> Iterator[None]:
  """Makes packages that are not imported yet look uninstalled in the body."""
  hidden = {name: None for name in packages if name not in sys.modules}
  sys.modules.update(hidden)  # type: ignore[arg-type]
  try:
    yield
  finally:
    for name in hidden:
      del sys.modules[name]


@contextlib.contextmanager
def _no_garbage() -> Iterator[None]:
  """Exempts all objects made in the body from garbage collection."""
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
