"""Sets up the devices of a program before it computes anything."""

from collections.abc import Callable
from typing import Any

from replicator.strategies.replicator import Replicator

import gin


def call(main: Callable[[str], None], workdir: str) -> None:
  """Calls `main(workdir)`, a configured program, which may prepare data before it trains.

  Any computation starts TensorFlow, and then the CPU can no longer be split, and no cluster can be
  joined. So if gin configures either, it is set up first.
  """
  if (_bound("Replicator.logical_cpus") is not None
      or _bound("Replicator.strategy") == "multi_worker_mirrored"):
    Replicator()
  main(workdir)


def _bound(name: str) -> Any:
  try:
    return gin.query_parameter(name)
  except ValueError:
    return None
