"""The Replicator runs one step function on every replica."""

import types

from replicator import Replicator, UsageError, replica_id
from replicator.step import context
from replicator.strategies import strategy as strategies
from tests.programs.refusals import refusal

import numpy as np
import pytest
import tensorflow as tf
import tree


@pytest.fixture(autouse=True)
def _strategy_kept(monkeypatch):
  """The strategy of the newest `Replicator` is undone after every test."""
  monkeypatch.setattr(context.run, "strategy", context.run.strategy)


def own_number() -> tf.Tensor:
  return tf.cast(replica_id(), tf.int32)


# ---- run() --------------------------------------------------------------------------------------


def test_inputs_are_split_in_order(synchronous):
  batch = {"x": np.arange(24).reshape(8, 3), "label": np.arange(8)}
  outputs = synchronous.run(lambda batch: batch, batch)
  share = 8 // synchronous.num_replicas
  assert [o["x"].shape for o in outputs] == [(share, 3)] * synchronous.num_replicas
  for name, value in batch.items():
    np.testing.assert_array_equal(np.concatenate([o[name] for o in outputs]), value)


def test_what_workers_join_is_on_all_of_them_and_counts_as_no_step(synchronous):
  replicas = synchronous.num_replicas
  values = {"x": np.arange(3 * replicas).reshape(replicas, 3), "y": np.arange(replicas) > 0}
  before = int(synchronous.run(context.step_number)[0])
  joined = synchronous.joined(values)
  assert int(synchronous.run(context.step_number)[0]) == before + 1
  tree.map_structure(np.testing.assert_array_equal, joined, values)
  assert synchronous.by_worker(2.5).tolist() == [2.5]


def test_several_functions_take_turns(one_or_two):
  with one_or_two.scope():
    variable = tf.Variable(0.0, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
  traces = []

  def add(x):
    traces.append("add")
    variable.assign_add(tf.reduce_max(x))
    return variable.read_value()

  def double():
    traces.append("double")
    variable.assign(2 * variable)
    return variable.read_value()

  for _ in range(2):
    one_or_two.run(add, np.ones([4], np.float32))
    outputs = one_or_two.run(double)
  assert [float(o) for o in outputs] == [6.0] * one_or_two.num_replicas  # 2 (2 (0 + 1) + 1)
  # Each is traced once for every replica.
  assert sorted(traces) == sorted(["add", "double"] * one_or_two.num_replicas)


def test_a_step_may_be_a_method_or_a_module(one_or_two):
  class Step(tf.Module):
    def __call__(self, x):
      return x + 1

    def method(self, x):
      return x + 2

  step = Step()
  for function, expected in ((step, 1), (step.method, 2), (step.method, 2)):
    outputs = one_or_two.run(function, np.zeros([4], np.int32))
    assert set(np.concatenate(outputs)) == {expected}
  assert len(one_or_two._compiled) == 2


OUTER = tf.constant([1, 2])
# A step, and what replica i is to return.
RETURNED = {
    "nothing": (lambda: None, lambda i: None),
    "own values": (lambda: {"id": own_number(), "nested": (own_number() * 10,)},
                   lambda i: {"id": i, "nested": (10 * i,)}),
    "a Python number": (lambda: 3, lambda i: 3),
    "an outer tensor": (lambda: OUTER, lambda i: [1, 2]),
    "an empty dict": (lambda: {}, lambda i: {}),
    "None in a nest": (lambda: {"a": own_number(), "b": None}, lambda i: {"a": i, "b": None}),
    "a Python number in a nest": (lambda: [own_number(), 3], lambda i: [i, 3]),
    "an outer tensor in a nest": (lambda: [own_number(), OUTER], lambda i: [i, [1, 2]]),
}


def test_run_returns_a_list_with_an_entry_for_each_replica(synchronous):
  for kind, (step, expected) in RETURNED.items():
    outputs = [tree.map_structure(lambda x: x.numpy().tolist() if tf.is_tensor(x) else x, output)
               for output in synchronous.run(step)]
    assert outputs == [expected(i) for i in range(synchronous.num_replicas)], kind


def test_a_variable_may_be_returned(synchronous):
  with synchronous.scope(), synchronous.scope():  # Harmless to nest, as the RFC has it.
    variables = [tf.Variable([1.0, 2.0], synchronization=synchronization, trainable=False,
                             aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
                 for synchronization in (tf.VariableSynchronization.AUTO,
                                         tf.VariableSynchronization.ON_READ)]
  outputs = synchronous.run(lambda: {"id": own_number(), "values": variables})
  assert [int(o["id"]) for o in outputs] == list(range(synchronous.num_replicas))
  for output in outputs:
    np.testing.assert_array_equal(output["values"], [[1.0, 2.0]] * 2)


def test_jit_compile_means_xla():
  def step(x):  # XLA knows nothing of strings.
    return tf.strings.length(tf.strings.as_string(tf.reduce_sum(x)))
  (length,) = Replicator("one_device").run(step, np.arange(5))
  assert int(length) == 2
  with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?s)unsupported operations.*XLA"):
    Replicator("one_device", jit_compile=True).run(step, np.arange(5))


# ---- Errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("inputs, message", [
    (tf.ragged.constant([[1], [2, 3]]), "a batch must be a nest of arrays or tensors"),
    (tf.sparse.from_dense([[1], [2]]), "a batch must be a nest of arrays or tensors"),
    (np.zeros([5, 2]), "a batch of 5 examples does not divide evenly among 2 replicas; use a "),
    ({"x": np.zeros([4, 2]), "label": np.zeros([8])},
     "the tensors of a batch must have the same number of examples on axis 0, not [4, 8]"),
    ({}, ""), (np.float32(1.0), ""), ([1, 2], "")],
    ids=["ragged", "sparse", "indivisible", "lengths", "empty", "scalar", "list"])
def test_inputs_that_are_not_a_batch(two, inputs, message):
  assert refusal(two.run, own_number, inputs).startswith(f"inputs: {message}")


@pytest.mark.parametrize("strategy, why", [
    ("parameter_server", "it is for synchronous replicas"),
    ("tpu", "a TPU always compiles the step")])
def test_xla_where_it_does_not_work(strategy, why):
  assert refusal(Replicator, strategy, jit_compile=True) == (
      f"Replicator.jit_compile = True: does not work with '{strategy}': {why}; change one of the "
      "two")


def test_a_run_inside_a_step_is_refused(one_or_two):
  with pytest.raises(UsageError, match=r"py:\d+: Replicator.run: called inside a step"):
    one_or_two.run(lambda x: one_or_two.run(lambda: x), np.zeros([2]))


# ---- Scope, and facts ---------------------------------------------------------------------------


def test_one_process_knows_its_part():
  for strategy, devices, replicas in (
      ("default", None, 1), ("one_device", 4, 1), ("mirrored", None, 1), ("mirrored", 3, 3),
      ("central_storage", 2, 2)):
    replicator = Replicator(strategy, logical_cpus=devices)
    assert replicator.name == strategy
    assert replicator.num_replicas == replicator.num_local_replicas == replicas
    assert replicator.num_workers == replicator.num_pipelines == 1
    assert replicator.worker_id == 0
    assert not replicator.is_async and replicator.max_running == 8
    replicator.join()  # There is nothing to wait for.


@pytest.mark.parametrize("index, kind, number", [(0, "chief", 0), (1, "worker", 2)])
def test_a_process_of_a_cluster_knows_its_part(index, kind, number, monkeypatch):
  cluster = tf.train.ClusterSpec({"chief": ["a:1"], "worker": ["b:1", "c:1"]})
  monkeypatch.setattr(strategies, "make", lambda *settings: types.SimpleNamespace(
      num_replicas_in_sync=6, extended=types.SimpleNamespace(worker_devices=["/gpu:0", "/gpu:1"]),
      cluster_resolver=types.SimpleNamespace(
          cluster_spec=lambda: cluster, task_type=kind, task_id=index)))
  replicator = Replicator("multi_worker_mirrored")
  assert (replicator.worker_id, replicator.num_local_replicas) == (number, 2)
  assert replicator.num_workers == replicator.num_pipelines == 3
  assert replicator.max_running == 0  # They agree on when to stop.
