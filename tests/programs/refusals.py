"""What a user reads when something is refused."""

import pytest

from replicator import UsageError


def refusal(function, *args, **kwargs) -> str:
  """The one line that the user sees."""
  with pytest.raises(UsageError) as caught:
    function(*args, **kwargs)
  # gin adds a line below that says what it called, which the command line drops.
  message, *rest = str(caught.value).splitlines()
  assert all(line.startswith("  In call to configurable") for line in rest)
  return message
