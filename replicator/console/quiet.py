"""Imports TensorFlow without its start-up log, which tells a user nothing.

Some of those lines are printed before any log level applies, so what reaches the terminal
during the import is collected, and shown only when the import fails.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator


def import_tensorflow() -> None:
  """Imports TensorFlow and probes for accelerators, silently unless that raises."""
  if "tensorflow" in sys.modules:
    return
  # Errors (level 2) stay visible. Whoever wants more sets the variable.
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
  with _stderr_kept_for_errors():
    import tensorflow as tf
    tf.config.list_physical_devices()  # Probing for a GPU that is not there logs an error.
  tf.get_logger().setLevel("ERROR")


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
          # An optimization of the graph that TensorFlow tried and went on without.
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
  """From now on keeps the information and warnings of TensorFlow's C++ code off the terminal.

  Some of them heed no log level. A process of its own does it, which passes on all that is
  written even when this one crashes. Does nothing if TF_CPP_MIN_LOG_LEVEL was set by the user.
  """
  global _filter
  if _asked_for_log or _filter:
    return
  sys.stderr.flush()
  # A session of its own, lest Ctrl-C ends it before its last lines came.
  _filter = subprocess.Popen([sys.executable, "-S", "-c", _DROP_NOISE], stdin=subprocess.PIPE,
                             stdout=os.dup(2), start_new_session=True)
  assert _filter.stdin is not None
  os.dup2(_filter.stdin.fileno(), 2)
  _filter.stdin.close()


def finish() -> None:
  """Waits until everything written to the standard error is out; nothing may be written after."""
  if _filter:
    sys.stderr.flush()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    with contextlib.suppress(subprocess.TimeoutExpired):
      _filter.wait(timeout=1)
