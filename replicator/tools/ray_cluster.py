"""Connects to the Ray cluster at RAY_ADDRESS, or else to a local one."""

import importlib
import logging
import os
import socket
from typing import Any

from replicator.errors import UsageError

_SECONDS = 10  # Ray itself would try for minutes.


def address() -> str | None:
  """Returns the cluster's address from RAY_ADDRESS; None for a local cluster."""
  return os.environ.get("RAY_ADDRESS") or None


def connect(needed_by: str, remote: str | None = None, **local: Any) -> Any:
  """Connects Ray to its cluster, unless it is already connected; returns the module `ray`.

  `needed_by` is the user's setting that needs Ray. The cluster is at `remote`, or else at
  RAY_ADDRESS, or else a local one, started with the arguments `local`.

  Raises:
    UsageError: Ray is not installed, or there is no cluster at the address.
  """
  os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
  try:
    ray = importlib.import_module("ray")
  except ModuleNotFoundError as error:
    raise UsageError(
        f"{needed_by}: Ray is not installed; pip install 'replicator[sweep]'") from error
  if ray.is_initialized():
    return ray
  wanted = remote or address()
  try:
    if wanted:
      check_answers(wanted)
    ray.init(log_to_driver=False, logging_level=logging.ERROR,
             # Without an address, Ray would look for a running cluster, which may be gone.
             **({"address": wanted} if wanted
                else {"address": "local", "include_dashboard": False, **local}))
  except (OSError, ValueError) as error:
    written = needed_by if remote else f"RAY_ADDRESS={wanted}"
    raise UsageError(f"{written}: no Ray cluster there ({error}); start one with 'ray start "
                     f"--head'{'' if remote else ', or unset RAY_ADDRESS for a local one'}"
                     ) from error
  return ray


def check_answers(remote: str) -> None:
  """Raises an OSError if no server listens at 'host:port'; other addresses are not checked."""
  host, _, port = remote.rpartition("://")[2].rpartition(":")
  if port.isdigit():
    socket.create_connection((host.strip("[]"), int(port)), _SECONDS).close()
