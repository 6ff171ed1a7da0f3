"""What stands in the way of a connection to Ray; connections are made in the tests of its users."""

import socket
import sys

import pytest

from replicator import UsageError, ray_cluster


def test_where_nobody_listens_one_line_says_so_at_once(monkeypatch):
  pytest.importorskip("ray")
  with socket.create_server(("127.0.0.1", 0)) as server:
    port = server.getsockname()[1]
  for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(UsageError, match=f"^RAY_ADDRESS={address}: no cluster of Ray there .*"
                                         "unset RAY_ADDRESS for a local one$"):
      ray_cluster.connect("--runner=ray")


def test_a_missing_extra(monkeypatch):
  monkeypatch.setitem(sys.modules, "ray", None)
  with pytest.raises(UsageError, match=r"^--runner=ray: Ray is not installed; pip install"):
    ray_cluster.connect("--runner=ray")
