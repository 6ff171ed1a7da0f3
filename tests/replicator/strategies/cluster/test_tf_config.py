"""TF_CONFIG, right and wrong."""

import json
import os

from replicator.strategies.cluster import tf_config
from tests.programs.refusals import refusal
from tests.replicator.strategies.cluster.test_managers import JOB, SAGEMAKER, STEP

import pytest

WORKERS = {"worker": ["127.0.0.1:4001", "127.0.0.1:4002"]}
SERVERS = {"chief": ["host:1"], "worker": ["host:2"], "ps": ["host:3"]}


def config(cluster=WORKERS, kind="worker", index=0) -> dict:
  return {"cluster": cluster, "task": {"type": kind, "index": index}}


def test_a_good_tf_config_is_returned(monkeypatch):
  for name, written in (
      ("multi_worker_mirrored", config(index=1)),
      ("multi_worker_mirrored", {**config(), "environment": "cloud"}),
      ("parameter_server", config(SERVERS, "ps")),
      ("parameter_server", config({**SERVERS, "chief": ["[::1]:80"]}, "worker"))):
    monkeypatch.setenv("TF_CONFIG", json.dumps(written))
    assert tf_config.read(name) == written


def form(text: str) -> str:
  return f'TF_CONFIG is {text!r}; it must have the form {{"cluster": {{"worker": ["host:port"'


BAD_CONFIGS = {
    # Text that is not a cluster.
    "{bad": "TF_CONFIG is not JSON (Expecting property name enclosed in double quotes",
    '{"cluster":\n': "TF_CONFIG is not JSON (Expecting value",
    **{text: form(text) for text in (
        "{}", "[]", '{"cluster": {}}', '{"cluster": {}, "task": "worker"}',
        '{"cluster": {}, "task": {"type": "worker"}}')},
    # Values that are not clusters.
    **{text: form(text) for text in (json.dumps(config(cluster)) for cluster in (
        None, ["127.0.0.1:4001"]))},
    json.dumps(config({})): "'multi_worker_mirrored' needs worker in the cluster, which has: noth",
    json.dumps(config({"chief": ["a:1"]})): "needs worker in the cluster, which has: chief",
    # Values that are not addresses.
    **{text: form(text) for text in (json.dumps(config({"worker": addresses})) for addresses in (
        "127.0.0.1:4001", None, [4001], ["127.0.0.1:http"], [":4001"], ["127.0.0.1:70000"]))},
    # Tasks that are not in the cluster.
    **{json.dumps(config(kind=kind)): f"the task type '{kind}' is not part of"
       for kind in ("ps", "boss", None, ["worker"])},
    **{json.dumps(config(index=index)): (
        f"TF_CONFIG: task index {index!r} is out of range; the cluster has 2 of type 'worker', "
        "counted from 0") for index in (2, -1, "0", None, 1.0)},
}


def test_a_bad_tf_config_is_refused_in_one_line(monkeypatch):
  for text, expected in BAD_CONFIGS.items():
    monkeypatch.setenv("TF_CONFIG", text)
    message = refusal(tf_config.read, "multi_worker_mirrored")
    assert message.startswith("TF_CONFIG") and expected in message, text


def test_the_chief_is_counted_before_the_workers():
  cluster = {"chief": ["a:1"], "worker": ["a:2", "a:3"], "evaluator": ["a:4"]}
  assert tf_config.worker_number({"worker": ["a:1", "a:2"]}, "worker", 1) == 1
  assert [tf_config.worker_number(cluster, *task) for task in (
      ("chief", 0), ("worker", 0), ("worker", 1))] == [0, 1, 2]


# The strategy, the cluster, the task's type, and what is said.
@pytest.mark.parametrize("name, cluster, kind, said", [
    ("multi_worker_mirrored", {"worker": ["a:1"]}, "evaluator", "start only processes of the "
     "cluster's types worker (the run does its own evaluations)"),
    ("parameter_server", {**SERVERS, "evaluator": ["a:4"]}, "evaluator",
     "the task type 'evaluator' is not part of 'parameter_server' training"),
    ("parameter_server", {"worker": ["a:1"], "ps": ["a:2"]}, "worker",
     "'parameter_server' needs chief in the cluster, which has: worker, ps"),
    ("parameter_server", {"chief": ["a:1"], "worker": ["a:2"]}, "chief",
     "'parameter_server' needs ps in the cluster, which has: chief, worker")])
def test_a_cluster_that_does_not_fit_is_refused(monkeypatch, name, cluster, kind, said):
  monkeypatch.setenv("TF_CONFIG", json.dumps(config(cluster, kind)))
  assert said in refusal(tf_config.read, name)


def test_two_processes_with_one_address_are_refused(monkeypatch):
  monkeypatch.setenv("TF_CONFIG", json.dumps(config({"worker": ["a:1", "b:1", "a:1"]})))
  assert refusal(tf_config.read, "multi_worker_mirrored") == (
      "TF_CONFIG: a:1 is the address of 2 processes; give each process its own")


def test_a_manager_that_is_not_there_is_refused(monkeypatch):
  monkeypatch.delenv("TF_CONFIG", raising=False)
  for manager, said in (("slrum", "no such manager. Did you mean 'slurm'? Write one of: auto"),
                        ("ray", "use 'auto', or start the processes with ray"),
                        ("slurm", "use 'auto', or start the processes with slurm")):
    refused = refusal(tf_config.make, "multi_worker_mirrored", manager)
    assert refused.startswith(f"Replicator.cluster = '{manager}': ") and said in refused


def test_tf_config_comes_first_and_is_who_is_who(monkeypatch):
  monkeypatch.setenv("TF_CONFIG", json.dumps(config(SERVERS, "worker")))
  monkeypatch.setenv("REPLICATOR_HOSTS", "x,y")
  monkeypatch.setenv("JOB_COMPLETION_INDEX", "0")
  assert tf_config.make("parameter_server") == (config(SERVERS, "worker"), "TF_CONFIG")
  assert tf_config.shown(config(SERVERS)) == "chief host:1; worker host:2; ps host:3"
  assert tf_config.number_of(os.environ) == 1
  monkeypatch.delenv("TF_CONFIG")
  assert tf_config.number_of(os.environ) == 0  # That of x and y.


@pytest.mark.parametrize("manager", ["auto", "ray"])
def test_a_process_of_ray_says_so(manager, monkeypatch):
  monkeypatch.setenv("TF_CONFIG", json.dumps(config(SERVERS, "worker")))
  monkeypatch.setenv("RAY_RAYLET_PID", "7")
  assert tf_config.make("parameter_server", manager) == (
      config(SERVERS, "worker"), "TF_CONFIG, in a Ray process")


def test_no_proxy_stands_between_the_processes(monkeypatch):
  monkeypatch.setenv("TF_CONFIG", json.dumps(config()))
  for variables, direct in (
      ({"no_proxy": "localhost"}, "localhost,127.0.0.1"), ({}, "127.0.0.1"),
      ({"no_proxy": "localhost", "no_grpc_proxy": "a.example"}, "a.example,127.0.0.1")):
    for name in ("no_proxy", "no_grpc_proxy"):
      monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
      monkeypatch.setenv(name, value)
    tf_config.make("multi_worker_mirrored")
    assert os.environ["no_grpc_proxy"] == direct  # noqa: SIM112


def test_each_worker_has_a_path_of_its_own():
  for environment, number in (
      ({}, 0), ({"TF_CONFIG": "no JSON"}, 0),
      ({"TF_CONFIG": json.dumps(config({"worker": ["n1:1", "n2:1"]}, "worker", 1))}, 1)):
    assert tf_config.per_worker("/disks/{worker}/images", environment) == f"/disks/{number}/images"
  assert refusal(tf_config.per_worker, "/data", {}).startswith(
      "per_worker.path = '/data': has no {worker} to replace")


def test_workers_that_would_train_by_themselves_are_refused():
  for cluster in (WORKERS, SERVERS):
    text = json.dumps(config(cluster))
    assert refusal(tf_config.check_used, "mirrored", {"TF_CONFIG": text}).startswith(
        "Replicator.strategy = 'mirrored': trains in one process, but TF_CONFIG has 2, each of ")
  tf_config.check_used("multi_worker_mirrored", {"TF_CONFIG": text})
  tf_config.check_used("default", {})
  for text in ('{"cluster": {"worker": ["a:1"]}}', '{"cluster": 3}', "torn"):
    tf_config.check_used("default", {"TF_CONFIG": text})


ALONE = json.dumps(config({"worker": ["a:1"]}))


@pytest.mark.parametrize("variables, source", [
    (STEP, "Slurm step 7.0 has 4"), (JOB, "REPLICATOR_HOSTS and JOB_COMPLETION_INDEX has 2"),
    (SAGEMAKER, "SM_HOSTS and SM_CURRENT_HOST has 2"),
    ({"OMPI_COMM_WORLD_SIZE": "3"}, "mpirun has 3"), ({"PMI_SIZE": "2"}, "mpirun has 2")])
def test_processes_of_a_manager_that_would_train_by_themselves_are_refused(
    variables, source, monkeypatch):
  for more in ({}, {"TF_CONFIG": ALONE}):  # A stale one.
    said = refusal(tf_config.check_used, "default", {**variables, **more})
    assert said.startswith(f"Replicator.strategy = 'default': trains in one process, but {source}, "
                           "each of which would train separately; ")
    assert said.endswith("for separate runs, set Replicator.cluster = 'tf_config'")
  tf_config.check_used("default", variables, "tf_config")
  tf_config.check_used("default", {"OMPI_COMM_WORLD_SIZE": "1"})
  tf_config.check_used("default", {**variables, "RAY_RAYLET_PID": "7"})  # A trial of a sweep.
  for name, value in {**variables, "TF_CONFIG": ALONE}.items():
    monkeypatch.setenv(name, value)
  assert refusal(tf_config.make, "multi_worker_mirrored").startswith(
      f"TF_CONFIG has 1 process, but {source}, each of which would train separately; unset ")
  assert tf_config.make("multi_worker_mirrored", "tf_config")[1] == "TF_CONFIG"
