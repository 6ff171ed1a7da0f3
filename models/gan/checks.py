"""Checks of numbers that a gin file sets."""

from replicator import UsageError


def at_least_one(owner: str, **values: int) -> None:
  """Raises a `UsageError` for the first of the `owner`'s parameters whose value is below 1."""
  for name, value in values.items():
    if value < 1:
      raise UsageError(f"{owner}.{name} = {value}: must be at least 1")
