"""TF_CONFIG, right and wrong."""

import json

import pytest

from replicator.errors import UsageError
from replicator.strategies import tf_config

WORKERS = {"worker": ["127.0.0.1:4001", "127.0.0.1:4002"]}
SERVERS = {"chief": ["host:1"], "worker": ["host:2"], "ps": ["host:3"]}


def config(cluster=WORKERS, kind="worker", index=0) -> dict:
  return {"cluster": cluster, "task": {"type": kind, "index": index}}


def test_a_good_tf_config_is_returned(monkeypatch):
  for name, written in [
      ("multi_worker_mirrored", config()),
      ("multi_worker_mirrored", config(index=1)),
      ("multi_worker_mirrored", {**config(), "environment": "cloud"}),
      ("parameter_server", config(SERVERS, "chief")),
      ("parameter_server", config(SERVERS, "ps")),
      ("parameter_server", config({**SERVERS, "chief": ["[::1]:80"]}, "worker"))]:
    monkeypatch.setenv("TF_CONFIG", json.dumps(written))
    assert tf_config.read(name) == written


def refusal(strategy: str) -> str:
  """The message, which must be one line."""
  with pytest.raises(UsageError) as caught:
    tf_config.read(strategy)
  assert "\n" not in str(caught.value)
  return str(caught.value)


def form(text: str) -> str:
  return f'TF_CONFIG is {text!r}; it must have the form {{"cluster": {{"worker": ["host:port"'


BAD_CONFIGS = {
    # Text that is not a cluster.
    "{bad": "TF_CONFIG is not JSON (Expecting property name enclosed in double quotes",
    '{"cluster":\n': "TF_CONFIG is not JSON (Expecting value",
    **{text: form(text) for text in (
        "{}", "[]", "3", "null", '"worker"', '{"cluster": {}}', '{"cluster": {}, "task": {}}',
        '{"cluster": {}, "task": "worker"}', '{"cluster": {}, "task": {"type": "worker"}}')},
    # Values that are not clusters.
    **{json.dumps(config(cluster)): "TF_CONFIG" for cluster in (
        None, 5, "worker", ["worker"], ["127.0.0.1:4001"], [1, 2])},
    json.dumps(config({})): "'multi_worker_mirrored' needs worker in the cluster, which has: noth",
    json.dumps(config({"chief": ["a:1"]})): "needs worker in the cluster, which has: chief",
    # Values that are not addresses.
    **{json.dumps(config({"worker": addresses})): (
        f"cluster['worker'] must be a list of \"host:port\" strings, not {addresses!r}")
       for addresses in (
           "127.0.0.1:4001", None, [4001], ["127.0.0.1"], ["127.0.0.1:"], ["127.0.0.1:http"],
           ["4001"], [":4001"], ["127.0.0.1:70000"], {"0": "127.0.0.1:4001"})},
    # Tasks that are not in the cluster.
    json.dumps(config(kind="ps")): "task type 'ps' is not in the cluster; it has: worker",
    json.dumps(config(kind="boss")): "task type 'boss' is not in the cluster; it has: worker",
    json.dumps(config(kind=None)): "task type",
    json.dumps(config(kind=["worker"])): "task type",
    **{json.dumps(config(index=index)): (
        f"TF_CONFIG: task index {index!r} is out of range; the cluster has 2 of type 'worker', "
        "counted from 0") for index in (2, -1, "0", None, 1.0)},
}


def test_a_bad_tf_config_is_refused_in_one_line(monkeypatch):
  for text, words in BAD_CONFIGS.items():
    monkeypatch.setenv("TF_CONFIG", text)
    message = refusal("multi_worker_mirrored")
    assert message.startswith("TF_CONFIG") and words in message, text


def test_a_parameter_server_cluster_needs_all_kinds(monkeypatch):
  for missing in SERVERS:
    cluster = {kind: addresses for kind, addresses in SERVERS.items() if kind != missing}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config(cluster, next(iter(cluster)))))
    assert refusal("parameter_server") == (
        f"TF_CONFIG: 'parameter_server' needs {missing} in the cluster, which has: "
        f"{', '.join(cluster)}")


def test_the_chief_is_counted_before_the_workers():
  workers = {"worker": ["a:2", "a:3"]}
  assert tf_config.worker_number(workers, "worker", 1) == 1
  with_chief = {"chief": ["a:1"], **workers, "evaluator": ["a:4"]}
  assert [tf_config.worker_number(with_chief, *task) for task in (
      ("chief", 0), ("worker", 0), ("worker", 1))] == [0, 1, 2]


@pytest.mark.parametrize("name, cluster, kind, message", [
    ("multi_worker_mirrored", {"worker": ["a:1"]}, "evaluator",
     "TF_CONFIG: the task type 'evaluator' takes no part in 'multi_worker_mirrored' training; "
     "start only chief and worker processes (the training evaluates by itself)"),
    ("multi_worker_mirrored", {"worker": ["a:1"], "ps": ["a:2"]}, "ps",
     "TF_CONFIG: the task type 'ps' takes no part in 'multi_worker_mirrored' training; start "
     "only chief and worker processes (the training evaluates by itself)"),
    ("parameter_server", {"chief": ["a:1"], "worker": ["a:2"], "ps": ["a:3"],
                          "evaluator": ["a:4"]}, "evaluator",
     "TF_CONFIG: the task type 'evaluator' takes no part in 'parameter_server' training; start "
     "only chief, worker and ps processes (the training evaluates by itself)"),
    ("multi_worker_mirrored", {"worker": ["a:1"], "chief": ["a:2", "a:3"]}, "worker",
     "TF_CONFIG: cluster['chief'] has 2 addresses; a cluster has one chief at most"),
    ("multi_worker_mirrored", {"worker": ["a:1"], "master": ["a:2"]}, "worker",
     "TF_CONFIG: the cluster has an unknown job 'master'; write one of: chief, worker, ps, "
     "evaluator")])
def test_a_task_that_takes_no_part(monkeypatch, name, cluster, kind, message):
  monkeypatch.setenv("TF_CONFIG", json.dumps(
      {"cluster": cluster, "task": {"type": kind, "index": 0}}))
  assert refusal(name) == message
