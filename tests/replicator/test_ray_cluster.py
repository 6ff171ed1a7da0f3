"""Connections to Ray that fail; the tests of its users make connections that work."""

import socket
import sys

import pytest

from models.rl.actor_pool import actor_process
from replicator import UsageError, ray_cluster


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_nobody_listens(scheme, monkeypatch):
  pytest.importorskip("ray")
  with socket.socket() as holder:  # It does not listen, and nobody else can at this port.
    holder.bind(("127.0.0.1", 0))
    address = f"{scheme}127.0.0.1:{holder.getsockname()[1]}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(UsageError, match=f"^RAY_ADDRESS={address}: no cluster of Ray there .*"
                                         "unset RAY_ADDRESS for a local one$"):
      ray_cluster.connect("--runner=ray")


def test_a_missing_extra(monkeypatch):
  monkeypatch.setitem(sys.modules, "ray", None)
  with pytest.raises(UsageError, match=r"^--runner=ray: Ray is not installed; pip install"):
    ray_cluster.connect("--runner=ray")
  with pytest.raises(UsageError, match=r"ActorPool.where = 'ray': .* pip install -e '\.\[sweep\]'"):
    actor_process.RayActor(b"")
