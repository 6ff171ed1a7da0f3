"""The error line that a user reads when something is refused."""

import pytest

from replicator import UsageError


def refusal(function, *args, **kwargs) -> str:
  """The one line that the user sees."""
  with pytest.raises(UsageError) as caught:
    function(*args, **kwargs)
  # Gin appends a line with the call, which the command line drops.
  message, *rest = str(caught.value).splitlines()
  assert all(line.startswith("  In call to configurable") for line in rest)
  return message
