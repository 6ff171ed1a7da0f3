"""The versions of the packages that affect the numbers of a run."""

import importlib.metadata
import platform


def versions() -> dict[str, str | None]:
  """Returns the versions of Python and of the numerical packages; None if not installed."""
  names = ("tensorflow", "keras", "numpy", "gin-config", "replicator")
  return {"python": platform.python_version(), **{name: _version(name) for name in names}}


def _version(name: str) -> str | None:
  try:
    return importlib.metadata.version(name)
  except importlib.metadata.PackageNotFoundError:
    return None
