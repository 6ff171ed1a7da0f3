"""From a name to a strategy, and everything that can be wrong with the name."""

import ctypes
import json
import os
import re
import signal

from replicator.strategies import strategy
from replicator.strategies.cluster import roll_call
from tests.programs.grpc_server import serving
from tests.programs.processes import python
from tests.programs.refusals import refusal

import pytest
import tensorflow as tf


@pytest.mark.parametrize("name, logical_cpus, kind", [
    ("default", None, "_DefaultDistributionStrategy"), ("one_device", None, "OneDeviceStrategy"),
    ("mirrored", 2, "MirroredStrategy"), ("central_storage", 2, "CentralStorageStrategyV1")])
def test_names(name, logical_cpus, kind):
  made = strategy.make(name, logical_cpus)
  assert type(made).__name__.removesuffix("V1") == kind.removesuffix("V1")
  assert made.num_replicas_in_sync == (logical_cpus or 1)
  assert strategy.make(name, logical_cpus) is made  # Two would collide in their collectives.


def test_an_unknown_name_or_number():
  for name, hint in (("miror", " Did you mean 'mirrored'?"),
                     ("central", " Did you mean 'central_storage'?"), ("zzz", "")):
    assert refusal(strategy.make, name) == (
        f"Replicator.strategy = '{name}': no such strategy.{hint} Write one of: default, "
        "one_device, mirrored, multi_worker_mirrored, central_storage, parameter_server, tpu")
  for count, problem in (
      (0, "must be at least 1"), (-2, "must be at least 1"),
      (9, f"this process already runs with 8 logical CPUs; {strategy.NEW_PROCESS}")):
    assert refusal(strategy.make, "mirrored", count) == (
        f"Replicator.logical_cpus = {count}: {problem}")


def test_without_a_tpu():
  assert refusal(strategy.make, "tpu").endswith(
      "; name one with Replicator.tpu, or choose another strategy")


def test_the_cpu_of_a_new_process_is_split():
  code = """
import replicator
from replicator.strategies import strategy
replicator.random
print(strategy.make("mirrored", 3).num_replicas_in_sync)
print(strategy.make("mirrored", 2).num_replicas_in_sync)
try:
  strategy.make("mirrored", 4)
except replicator.UsageError as error:
  print(error)
"""
  assert python("-c", code).stdout.splitlines() == [
      "3", "2", "Replicator.logical_cpus = 4: this process already runs with 3 logical CPUs; "
      + strategy.NEW_PROCESS]


def test_a_cpu_that_has_computed_cannot_be_split_and_the_line_is_named(monkeypatch):
  monkeypatch.setattr(tf.config, "get_logical_device_configuration", lambda device: None)
  assert re.match(
      r"Replicator.logical_cpus = 7: TensorFlow has already started with one CPU device, "
      r"at tests/conftest.py:\d+; start a new process ", refusal(strategy.make, "mirrored", 7))


@pytest.mark.parametrize("name, launch, cluster, kind", [
    ("multi_worker_mirrored", "--workers=2", {"worker": ["host:1", "host:2"]}, "worker"),
    ("parameter_server", "--workers=2 --ps=1",
     {"chief": ["host:1"], "worker": ["host:2"], "ps": ["host:3"]}, "chief")])
def test_a_cluster_needs_tf_config_and_one_device_a_process(monkeypatch, name, launch, cluster,
                                                            kind):
  monkeypatch.delenv("TF_CONFIG", raising=False)
  assert f"with: replicator launch {launch} -- COMMAND; or with srun" in refusal(
      strategy.make, name)
  monkeypatch.setenv("TF_CONFIG", json.dumps(
      {"cluster": cluster, "task": {"type": kind, "index": 0}}))
  assert refusal(strategy.make, name, 2).startswith("Replicator.logical_cpus = 2: ")


def test_two_chiefs_are_refused_before_any_process_waits_for_them(monkeypatch):
  monkeypatch.setenv("TF_CONFIG", json.dumps({
      "cluster": {"chief": ["a:1", "a:2"], "worker": ["b:1"]},
      "task": {"type": "worker", "index": 0}}))
  assert refusal(strategy.make, "multi_worker_mirrored") == (
      "TF_CONFIG: the cluster has 2 chiefs; make all but one workers")


def test_a_cluster_cannot_begin_where_tensorflow_has_computed(monkeypatch):
  monkeypatch.setenv("TF_CONFIG", json.dumps({
      "cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}))
  assert refusal(strategy.make, "multi_worker_mirrored").endswith(
      f"; {strategy.NEW_PROCESS}")


@pytest.mark.parametrize("number", [0, 1], ids=["chief", "other"])
def test_the_chief_notes_open_ports_and_each_keeps_its_handler_of_sigterm(number, monkeypatch,
                                                                          capsys):
  monkeypatch.setattr(strategy, "has_started", lambda: False)
  monkeypatch.setattr(roll_call, "attend", lambda config, jobs, seconds: None)
  ignore = ctypes.c_void_p(signal.SIG_IGN.value)  # As C code does, past Python.

  def make():
    ctypes.CDLL(None).signal(signal.SIGTERM, ignore)
    return tf.distribute.get_strategy()
  monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", make)
  received: list[int] = []
  previous = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
  try:
    with serving() as port:  # The chief waits for it.
      monkeypatch.setenv("TF_CONFIG", json.dumps({
          "cluster": {"worker": ["a:1", f"127.0.0.1:{port}"]},
          "task": {"type": "worker", "index": number}}))
      strategy.make.__wrapped__("multi_worker_mirrored")
    os.kill(os.getpid(), signal.SIGTERM)
    assert received == [signal.SIGTERM]
  finally:
    signal.signal(signal.SIGTERM, previous)
  note = (f"cluster     worker a:1, 127.0.0.1:{port} (from TF_CONFIG)\n"
          "note: these ports accept commands from any machine that can reach them, without a "
          "password; see docs/howto/security.md\n")
  assert capsys.readouterr().err == ("" if number else note)
