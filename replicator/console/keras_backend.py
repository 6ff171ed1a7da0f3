"""Sets the backend of Keras to TensorFlow, even if the environment or a file requests another."""

import json
import os
import pathlib
import sys

from replicator.errors import UsageError

_NAME = "tensorflow"


def use_tensorflow() -> None:
  """Makes Keras use TensorFlow, and prints a note if a different backend was requested.

  Raises a UsageError if Keras is already imported with a different backend.
  """
  if "keras" in sys.modules:
    config = getattr(sys.modules["keras"], "config", None)  # None while it is being imported.
    if config and config.backend() != _NAME:
      raise UsageError(f"Keras was imported with the backend {config.backend()}; import replicator "
                       f"before keras, or set KERAS_BACKEND={_NAME}")
    return
  by, asked = "KERAS_BACKEND", os.environ.get("KERAS_BACKEND")
  if not asked:
    home = os.environ.get("KERAS_HOME") or os.path.expanduser("~/.keras")
    file = pathlib.Path(home, "keras.json")
    by, asked = str(file), _backend_in(file)
  if asked and asked != _NAME:
    print(f"note: {by} asks for the backend {asked}; replicator trains with {_NAME}",
          file=sys.stderr, flush=True)
    os.environ["KERAS_BACKEND"] = _NAME


def _backend_in(file: pathlib.Path) -> str | None:
  try:
    found = json.loads(file.read_text())
  except (OSError, ValueError):  # Then Keras uses TensorFlow.
    return None
  return found.get("backend") if isinstance(found, dict) else None
