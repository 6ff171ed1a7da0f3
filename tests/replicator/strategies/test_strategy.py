"""From a name to a strategy, and everything that may be wrong with it."""

import json
import pathlib
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


# ---- TF_CONFIG ----------------------------------------------------------------------------------

WORKERS = {"worker": ["127.0.0.1:4001", "127.0.0.1:4002"]}
SERVERS = {"chief": ["host:1"], "worker": ["host:2"], "ps": ["host:3"]}


def config(cluster=WORKERS, kind="worker", index=0) -> dict:
  return {"cluster": cluster, "task": {"type": kind, "index": index}}


@pytest.mark.parametrize("name, written", [
    ("multi_worker_mirrored", config()),
    ("multi_worker_mirrored", config(index=1)),
    ("multi_worker_mirrored", {**config(), "environment": "cloud"}),
    ("parameter_server", config(SERVERS, "chief")),
    ("parameter_server", config(SERVERS, "ps")),
    ("parameter_server", config({**SERVERS, "chief": ["[::1]:80"]}, "worker"))])
def test_a_good_tf_config_is_returned(monkeypatch, name, written):
  monkeypatch.setenv("TF_CONFIG", json.dumps(written))
  assert strategy.read_tf_config(name) == written


@pytest.mark.parametrize("name, launch", [
    ("multi_worker_mirrored", "python -m replicator.launch --workers=2 -- COMMAND"),
    ("parameter_server", "python -m replicator.launch --workers=2 --ps=1 -- COMMAND")])
def test_a_missing_tf_config(monkeypatch, name, launch):
  monkeypatch.delenv("TF_CONFIG", raising=False)
  assert refusal(strategy.make, name) == (
      f"Replicator.strategy = '{name}': the environment has no TF_CONFIG; start all processes "
      f"with: {launch}")


def form(text: str) -> str:
  return f'TF_CONFIG is {text!r}; it must have the form {{"cluster": {{"worker": ["host:port"'


BAD_CONFIGS = {
    # Text that holds no cluster.
    "{bad": "TF_CONFIG is not JSON (Expecting property name enclosed in double quotes",
    '{"cluster":\n': "TF_CONFIG is not JSON (Expecting value",
    **{text: form(text) for text in (
        "{}", "[]", "3", "null", '"worker"', '{"cluster": {}}', '{"cluster": {}, "task": {}}',
        '{"cluster": {}, "task": "worker"}', '{"cluster": {}, "task": {"type": "worker"}}')},
    # A cluster that is none.
    **{json.dumps(config(cluster)): "TF_CONFIG" for cluster in (
        None, 5, "worker", ["worker"], ["127.0.0.1:4001"], [1, 2])},
    json.dumps(config({})): "'multi_worker_mirrored' needs worker in the cluster, which has: noth",
    json.dumps(config({"chief": ["a:1"]})): "needs worker in the cluster, which has: chief",
    # Addresses that are none.
    **{json.dumps(config({"worker": addresses})): (
        f"cluster['worker'] must be a list of \"host:port\" strings, not {addresses!r}")
       for addresses in (
           "127.0.0.1:4001", None, [4001], ["127.0.0.1"], ["127.0.0.1:"], ["127.0.0.1:http"],
           ["4001"], [":4001"], ["127.0.0.1:70000"], {"0": "127.0.0.1:4001"})},
    # A task that is not in the cluster.
    json.dumps(config(kind="ps")): "task type 'ps' is not in the cluster; it has: worker",
    json.dumps(config(kind=None)): "task type",
    json.dumps(config(kind=["worker"])): "task type",
    **{json.dumps(config(index=index)): (
        f"TF_CONFIG: task index {index!r} is out of range; the cluster has 2 of type 'worker', "
        "counted from 0") for index in (2, -1, "0", None, 1.0)},
}


@pytest.mark.parametrize("text", BAD_CONFIGS)
def test_a_bad_tf_config_is_told_in_one_line(monkeypatch, text):
  monkeypatch.setenv("TF_CONFIG", text)
  message = refusal(strategy.read_tf_config, "multi_worker_mirrored")
  assert message.startswith("TF_CONFIG")
  assert BAD_CONFIGS[text] in message


@pytest.mark.parametrize("missing", ["chief", "worker", "ps"])
def test_a_parameter_server_cluster_needs_all_kinds(monkeypatch, missing):
  cluster = {kind: addresses for kind, addresses in SERVERS.items() if kind != missing}
  monkeypatch.setenv("TF_CONFIG", json.dumps(config(cluster, next(iter(cluster)))))
  assert refusal(strategy.read_tf_config, "parameter_server") == (
      f"TF_CONFIG: 'parameter_server' needs {missing} in the cluster, which has: "
      f"{', '.join(cluster)}")


@pytest.mark.parametrize("name, written", [
    ("multi_worker_mirrored", config()), ("parameter_server", config(SERVERS, "chief"))])
def test_processes_are_not_split_further(monkeypatch, name, written):
  monkeypatch.setenv("TF_CONFIG", json.dumps(written))
  assert refusal(strategy.make, name, 2) == (
      f"Replicator.logical_cpus = 2: '{name}' has one replica for each process on CPUs; "
      "start more workers instead")


def test_this_process_has_the_devices_that_the_tests_need():
  assert len(tf.config.list_logical_devices("CPU")) == 8
