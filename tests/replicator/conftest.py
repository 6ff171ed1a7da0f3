"""Strategies for the tests of the engine."""

from replicator import Replicator

import pytest
import tensorflow as tf

# Every synchronous strategy that one process can run, by what a gin file would say; `one_or_two`
# has the default one.
SYNCHRONOUS = [("one_device", None), ("central_storage", 2), ("mirrored", 4)]


@pytest.fixture(params=SYNCHRONOUS, ids=lambda p: f"{p[0]}-{p[1] or 1}")
def synchronous(request):
  """A new `Replicator` of every synchronous strategy in turn; the strategies are shared."""
  name, devices = request.param
  return Replicator(name, logical_cpus=devices)


@pytest.fixture(params=[("default", None), ("mirrored", 2)], ids=["one", "two"])
def one_or_two(request):
  """A new `Replicator` of one replica, then of two: where no more than their number matters."""
  name, devices = request.param
  return Replicator(name, logical_cpus=devices)


@pytest.fixture
def two():
  """A new `Replicator` of two replicas."""
  return Replicator("mirrored", logical_cpus=2)


@pytest.fixture
def in_a_folder_of_its_own(tmp_path, monkeypatch):
  """The working directory is new; the same as `tmp_path`."""
  monkeypatch.chdir(tmp_path)
  return tmp_path


@pytest.fixture
def run_eagerly():
  """A function that does what `--eager` does."""
  return lambda: tf.config.run_functions_eagerly(True)
