"""Finds the line of user code that starts TensorFlow, after which devices cannot change.

Importing this module does not load TensorFlow: the import of TensorFlow calls `note_start`.
"""

import os
import traceback

from replicator.errors import is_of_user

_started_at = ""


def note_start() -> None:
  """Sets up recording of the line of user code that starts TensorFlow in this process."""
  from tensorflow.python.eager import context as eager_context
  context = eager_context.context()
  if context._initialized:
    return

  def begin() -> None:
    global _started_at
    del context.ensure_initialized  # Restores the method of the class.
    own = [frame for frame in traceback.extract_stack() if is_of_user(frame.filename)]
    _started_at = f"{os.path.relpath(own[-1].filename)}:{own[-1].lineno}" if own else ""
    context.ensure_initialized()

  context.ensure_initialized = begin


def started_at() -> str:
  """Returns the `file:line` of user code that started TensorFlow; '' if it is unknown."""
  return _started_at
