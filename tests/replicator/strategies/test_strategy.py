"""From a name to a strategy, and everything that can be wrong with the name."""

import ctypes
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest
import tensorflow as tf

from replicator.errors import UsageError
from replicator.strategies import strategy

ROOT = pathlib.Path(__file__).parents[3]


def refusal(function, *args) -> str:
  """The message, which must be one line."""
  with pytest.raises(UsageError) as caught:
    function(*args)
  assert "\n" not in str(caught.value)
  return str(caught.value)


# ---- Names and devices --------------------------------------------------------------------------


@pytest.mark.parametrize("name, logical_cpus, kind", [
    ("default", None, "_DefaultDistributionStrategy"), ("one_device", None, "OneDeviceStrategy"),
    ("mirrored", 2, "MirroredStrategy"), ("central_storage", 2, "CentralStorageStrategyV1")])
def test_names(name, logical_cpus, kind):
  made = strategy.make(name, logical_cpus)
  assert type(made).__name__.removesuffix("V1") == kind.removesuffix("V1")
  assert made.num_replicas_in_sync == (logical_cpus or 1)
  assert strategy.make(name, logical_cpus) is made  # Two would collide in their collectives.


@pytest.mark.parametrize("name, hint", [
    ("miror", " Did you mean 'mirrored'?"), ("central", " Did you mean 'central_storage'?"),
    ("zzz", "")])
def test_an_unknown_name(name, hint):
  assert refusal(strategy.make, name) == (
      f"Replicator.strategy = '{name}': no such strategy.{hint} Write one of: default, one_device, "
      "mirrored, multi_worker_mirrored, central_storage, parameter_server, tpu")


@pytest.mark.parametrize("count, problem", [
    (0, "must be at least 1"), (-2, "must be at least 1"),
    (9, "this process already runs with 8 logical CPUs; start a new one")])
def test_impossible_numbers_of_logical_cpus(count, problem):
  message = refusal(strategy.make, "mirrored", count)
  assert message == f"Replicator.logical_cpus = {count}: {problem}"


def test_without_a_tpu():
  message = refusal(strategy.make, "tpu")
  assert message.startswith("Replicator.strategy = 'tpu': no TPU here (")
  assert message.endswith("; name one with Replicator.tpu, or write another strategy")


def in_a_new_process(code: str) -> list[str]:
  code = "import replicator\nfrom replicator.strategies import strategy\n" + code
  return subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True,
                        text=True).stdout.splitlines()


def test_the_cpu_of_a_new_process_is_split():
  assert in_a_new_process("""
replicator.random
print(strategy.make("mirrored", 3).num_replicas_in_sync)
print(strategy.make("mirrored", 2).num_replicas_in_sync)
try:
  strategy.make("mirrored", 4)
except replicator.UsageError as error:
  print(error)
""") == ["3", "2", "Replicator.logical_cpus = 4: this process already runs with 3 logical CPUs; "
         "start a new one"]


@pytest.mark.slow
def test_a_cpu_that_has_computed_cannot_be_split():
  assert in_a_new_process("""
import tensorflow as tf
tf.constant(1) + 1
print(strategy.make("mirrored").num_replicas_in_sync)
try:
  strategy.make("mirrored", 2)
except replicator.UsageError as error:
  print(error)
""") == ["1", "Replicator.logical_cpus = 2: TensorFlow has already started with one CPU device; "
         "make the Replicator before computing anything"]


# ---- Clusters -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name, launch", [
    ("multi_worker_mirrored", "python -m replicator.launch --workers=2 -- COMMAND"),
    ("parameter_server", "python -m replicator.launch --workers=2 --ps=1 -- COMMAND")])
def test_a_missing_tf_config(monkeypatch, name, launch):
  monkeypatch.delenv("TF_CONFIG", raising=False)
  assert refusal(strategy.make, name) == (
      f"Replicator.strategy = '{name}': the environment has no TF_CONFIG; start all processes "
      f"with: {launch}")


@pytest.mark.parametrize("name, cluster, kind", [
    ("multi_worker_mirrored", {"worker": ["host:1", "host:2"]}, "worker"),
    ("parameter_server", {"chief": ["host:1"], "worker": ["host:2"], "ps": ["host:3"]}, "chief")])
def test_the_processes_of_a_cluster_are_not_split_further(monkeypatch, name, cluster, kind):
  monkeypatch.setenv("TF_CONFIG", json.dumps(
      {"cluster": cluster, "task": {"type": kind, "index": 0}}))
  assert refusal(strategy.make, name, 2) == (
      f"Replicator.logical_cpus = 2: '{name}' has one replica for each process on CPUs; "
      "start more workers instead")


@pytest.fixture(params=[0, 1], ids=["chief", "other"])
def cluster_of_two(request, monkeypatch) -> int:
  """The number of this process in a cluster, whose strategy replaces the handler of SIGTERM."""
  monkeypatch.setenv("TF_CONFIG", json.dumps({
      "cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": request.param}}))
  ignore = ctypes.c_void_p(signal.SIG_IGN.value)  # As C code does, past Python.
  monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy",
                      lambda: ctypes.CDLL(None).signal(signal.SIGTERM, ignore))
  return request.param


def test_the_chief_notes_that_the_ports_are_open(cluster_of_two, capsys):
  strategy.make.__wrapped__("multi_worker_mirrored")
  note = ("note: the ports in TF_CONFIG take commands from every machine that reaches them, "
          "without a password; see docs/guide/security.md\n")
  assert capsys.readouterr().err == ("" if cluster_of_two else note)


def test_a_strategy_keeps_the_handler_of_sigterm(cluster_of_two):
  received: list[int] = []
  previous = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
  try:
    strategy.make.__wrapped__("multi_worker_mirrored")
    os.kill(os.getpid(), signal.SIGTERM)
    assert received == [signal.SIGTERM]
  finally:
    signal.signal(signal.SIGTERM, previous)


def test_this_process_has_the_devices_that_the_tests_need():
  assert len(tf.config.list_logical_devices("CPU")) == 8
