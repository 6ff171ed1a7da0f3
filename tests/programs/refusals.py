"""The error line that a user reads when something is refused."""

from replicator.errors import UsageError, chain_of

import pytest
import tensorflow as tf


def refusal(function, *args, **kwargs) -> str:
  """The one line that the user sees, also of what an input pipeline calls."""
  with pytest.raises((UsageError, tf.errors.OpError)) as caught:
    function(*args, **kwargs)
  error = caught.value if isinstance(caught.value, UsageError) else chain_of(caught.value)[-1]
  assert isinstance(error, UsageError)
  # Gin appends a line with the call, which the command line drops.
  message, *rest = str(error).splitlines()
  assert all(line.startswith("  In call to configurable") for line in rest)
  return message
