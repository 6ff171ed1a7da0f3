"""Imports TensorFlow fast, and without its start-up log, which does not help a user.

Some lines of that log are printed before any log level applies. So the standard error of the import
is collected, and shown only if the import fails.
"""

import contextlib
import gc
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence


def import_tensorflow() -> None:
  """Imports TensorFlow and probes for accelerators, silently unless that raises.

  Keras loads scikit-learn and matplotlib if they are there, which takes a third of the time, for
  its wrappers for scikit-learn and its galleries of pictures, and its old version loads SciPy. It
  does without them here; who needs these imports `sklearn` and `matplotlib.pyplot` first.
  """
  if "tensorflow" in sys.modules:
    return
  # Errors (level 2) stay visible. A user who wants to see more sets the variable.
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
  with _stderr_kept_for_errors(), _hidden(_OPTIONAL), _no_garbage():
    import tensorflow as tf
    tf.config.list_physical_devices()  # Probing for a GPU that is not there logs an error.
  tf.get_logger().setLevel("ERROR")


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


_NOISE = (rb"[IW]\d{4} [\d:.]+ +\d+ [\w.]+:\d+\]|WARNING: All log messages before absl::Init|"
          rb"To enable the following instructions:|"
          # An optional optimization of the graph that TensorFlow could not make.
          rb"E\d{4} [\d:.]+ +\d+ meta_optimizer.cc:\d+\] \w+ failed|"
          # float16 on a CPU that computes it in float32.
          rb"E\d{4} [\d:.]+ +\d+ \S+\] oneDNN supports DT_HALF only")
_DROP_NOISE = f"""
import re, sys
for line in sys.stdin.buffer:
  if not re.match({_NOISE!r}, line):
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
"""
_asked_for_log = "TF_CPP_MIN_LOG_LEVEL" in os.environ
_filter: subprocess.Popen | None = None


def drop_native_log() -> None:
  """Keeps the notes and warnings of TensorFlow's C++ code off the terminal from now on.

  Some of these ignore the log level. A separate process filters them, so that other lines appear
  even if this process crashes. Does nothing if the user has set TF_CPP_MIN_LOG_LEVEL.
  """
  global _filter
  if _asked_for_log or _filter:
    return
  sys.stderr.flush()
  # The filter has its own session, so that Ctrl-C does not end it before the last lines.
  _filter = subprocess.Popen([sys.executable, "-S", "-c", _DROP_NOISE], stdin=subprocess.PIPE,
                             stdout=os.dup(2), start_new_session=True)
  assert _filter.stdin is not None
  os.dup2(_filter.stdin.fileno(), 2)
  _filter.stdin.close()


def finish() -> None:
  """Waits until all of the standard error is shown; nothing may be written to it afterwards."""
  if _filter:
    sys.stderr.flush()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    with contextlib.suppress(subprocess.TimeoutExpired):
      _filter.wait(timeout=1)
