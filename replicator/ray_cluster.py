"""The Ray cluster that RAY_ADDRESS names, or else a local one."""

import importlib
import logging
import os
import socket
from typing import Any

from replicator.errors import UsageError

_SECONDS = 10  # Ray itself tries for minutes.


def address() -> str | None:
  """The address of the cluster that RAY_ADDRESS names; None for a local cluster."""
  return os.environ.get("RAY_ADDRESS") or None


def connect(needed_by: str, **local: Any) -> Any:
  """Connects Ray to its cluster, unless it is connected already; returns the module `ray`.

  `needed_by` is what the user wrote that needs Ray; `local` goes to `ray.init` of a local cluster.

  Raises:
    UsageError: Ray is not installed, or there is no cluster at the address.
  """
  os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
  try:
    ray = importlib.import_module("ray")
  except ModuleNotFoundError as error:
    raise UsageError(f"{needed_by}: Ray is not installed; pip install -e '.[sweep]'") from error
  if ray.is_initialized():
    return ray
  remote = address()
  try:
    if remote:
      _check_answers(remote)
    ray.init(log_to_driver=False, logging_level=logging.ERROR,
             **({"address": remote} if remote else {"include_dashboard": False, **local}))
  except OSError as error:
    raise UsageError(f"RAY_ADDRESS={remote}: no cluster of Ray there ({error}); start one with "
                     "'ray start --head', or unset RAY_ADDRESS for a local one") from error
  return ray


def _check_answers(remote: str) -> None:
  """Raises an OSError if no server listens at 'host:port'; Ray resolves other addresses itself."""
  host, _, port = remote.rpartition("://")[2].rpartition(":")
  if port.isdigit():
    socket.create_connection((host.strip("[]"), int(port)), _SECONDS).close()
