"""Connections to Ray that fail; the tests of its users make connections that work."""

import socket
import sys

from models.rl.actor_pool import actor_process
from replicator import UsageError
from replicator.tools import ray_cluster
from tests.programs.refusals import refusal

import pytest


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_nobody_listens(scheme, monkeypatch):
  pytest.importorskip("ray")
  with socket.socket() as holder:  # It does not listen, and nobody else can at this port.
    holder.bind(("127.0.0.1", 0))
    address = f"{scheme}127.0.0.1:{holder.getsockname()[1]}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(UsageError, match=f"^RAY_ADDRESS={address}: no Ray cluster there .*"
                                         "unset RAY_ADDRESS for a local one$"):
      ray_cluster.connect("--runner=ray")


def test_a_missing_extra(monkeypatch):
  monkeypatch.setitem(sys.modules, "ray", None)
  remedy = "Ray is not installed; pip install 'replicator[sweep]'"
  assert refusal(ray_cluster.connect, "--runner=ray") == f"--runner=ray: {remedy}"
  assert refusal(actor_process.RayActor, b"") == f"ActorPool.where = 'ray': {remedy}"
