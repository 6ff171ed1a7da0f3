"""Variables with a value for each replica, saved and restored."""

import contextlib
import types
import zlib

from replicator import Replicator, UsageError
from replicator.step.replicated import copies_of
from replicator.training.checkpoints import saver, snapshot
from tests.programs.refusals import refusal

import numpy as np
import pytest
import tensorflow as tf

AGGREGATIONS = tf.VariableAggregation


class Own(tf.Module):
  """Holds a variable with a copy on every replica."""

  def __init__(self, aggregation: tf.VariableAggregation, dtype: tf.DType):
    super().__init__()
    self.own = tf.Variable([0, 0], dtype=dtype, aggregation=aggregation,
                           synchronization=tf.VariableSynchronization.ON_READ)


def replicator_of(count: int) -> Replicator:
  return Replicator("mirrored", logical_cpus=count) if count > 1 else Replicator()


def moved(tmp_path, aggregation, dtype, values: list, count: int) -> list:
  """Saves `values`, one for each replica, and restores them on `count` replicas."""
  steps = []
  for replicas in (len(values), count):
    with replicator_of(replicas).scope():
      steps.append(Own(aggregation, dtype))
  for copy, value in zip(copies_of(steps[0].own), values, strict=True):
    copy.assign([value, value])
  checkpoints = saver.Saver(tmp_path, steps[0], replicator_of(len(values)))
  checkpoints.save(1, {})
  checkpoints.wait()
  saver.Saver(tmp_path, steps[1], replicator_of(count)).restore()
  found = [copy.numpy() for copy in copies_of(steps[1].own)]
  assert all(value[0] == value[1] for value in found)
  return [value[0].item() for value in found]


@pytest.mark.parametrize("aggregation", [AGGREGATIONS.SUM, AGGREGATIONS.NONE])
def test_each_replica_gets_its_own_back(aggregation, tmp_path):
  assert moved(tmp_path / "1", aggregation, tf.float32, [0.1, 0.7], 2) == [
      np.float32(0.1), np.float32(0.7)]
  assert moved(tmp_path / "2", aggregation, tf.float32, [0.1, 0.1], 2) == [np.float32(0.1)] * 2


@pytest.mark.parametrize("aggregation, dtype, values, count, expected", [
    (AGGREGATIONS.SUM, tf.int64, [3, 4], 4, [7, 0, 0, 0]),
    (AGGREGATIONS.SUM, tf.int64, [5], 2, [5, 0]),
    (AGGREGATIONS.MEAN, tf.float64, [3, 4], 4, [3.5] * 4),
    (AGGREGATIONS.ONLY_FIRST_REPLICA, tf.float64, [3, 4], 4, [3] * 4),
    (AGGREGATIONS.MEAN, tf.float64, [0.1] * 3, 2, [0.1] * 2),  # Their mean is another number.
    (AGGREGATIONS.NONE, tf.float64, [3], 2, [3] * 2),
    (AGGREGATIONS.NONE, tf.float64, [3, 3], 4, [3] * 4)])
def test_on_another_number_of_replicas_the_aggregation_decides(
    aggregation, dtype, values, count, expected, tmp_path):
  assert moved(tmp_path, aggregation, dtype, values, count) == expected


def test_without_an_aggregation_different_values_need_their_replicas(tmp_path):
  assert "'own' for each of 2 replicas, but there are 4 now" in refusal(
      moved, tmp_path, AGGREGATIONS.NONE, tf.float64, [3, 4], 4)


@pytest.mark.parametrize("aggregation, expected, replicas", [
    (AGGREGATIONS.SUM, 7.0, 1), (AGGREGATIONS.MEAN, 3.5, 2),
    (AGGREGATIONS.ONLY_FIRST_REPLICA, 3.0, 2)])
def test_a_variable_that_no_longer_differs_has_one_value_on_all_replicas(
    aggregation, expected, replicas):
  replicator = replicator_of(replicas)
  with replicator.scope():
    same = tf.Variable([0.0, 0.0], aggregation=aggregation)
  saved = snapshot.Snapshot({"own": np.float32([[3, 3], [4, 4]])}, ["own"])
  snapshot.Variables({"own": same}, replicator).put(saved)
  assert [copy.numpy().tolist() for copy in copies_of(same)] == [[expected] * 2] * replicas


@pytest.mark.parametrize("worker, expected", [(0, [1.0, 2.0]), (1, [3.0, 4.0])])
def test_each_worker_gets_the_values_of_its_own_replicas(worker, expected):
  class Worker(Replicator):
    """One of two processes that run two replicas each."""
    worker_id, num_pipelines = worker, 2

  replicator = Worker("mirrored", logical_cpus=2)
  with replicator.scope():
    step = Own(AGGREGATIONS.NONE, tf.float64)
  replicator.num_replicas = 4
  values = np.array([[1, 1], [2, 2], [3, 3], [4, 4]], np.float64)
  snapshot.Variables({"own": step.own}, replicator).put(snapshot.Snapshot({"own": values}, ["own"]))
  assert [copy.numpy()[0] for copy in copies_of(step.own)] == expected


class Remaining:
  """Two processes, of which the second stays as this one was when it was asked first."""

  num_pipelines, worker_id = 2, 0

  def __init__(self):
    self._first = {}

  def joined(self, values):
    return np.concatenate([values, self._first.setdefault("joined", values)])

  def by_worker(self, value):
    return np.array([value, self._first.setdefault("by_worker", value)])


@pytest.mark.parametrize("changes, named", [
    (lambda v, flags: v.assign([1.0, 3.0]), r"Halving at step 4 assigned the variable 'net/rate'"),
    (lambda v, flags: flags.append(False), r"Halving at step 4 changed what is trainable"),
    (lambda v, flags: v.assign(v), None)])
def test_code_that_changes_one_worker_alone_is_named(changes, named):
  with tf.distribute.MirroredStrategy(["cpu:0"]).scope():
    rate = tf.Variable([1.0, 2.0])
  flags, cluster = [True], Remaining()
  cluster.by_worker(float(hash(tuple(flags)) % 2 ** 24))
  variables = snapshot.Variables({"net/rate": rate}, cluster)
  with (pytest.raises(UsageError, match=f"{named}.*; set on_all_workers = True in its class")
        if named else contextlib.nullcontext(),
        variables.changed_alike("Halving at step 4", lambda: tuple(flags))):
    changes(rate, flags)


@pytest.mark.parametrize("is_used", [True, False])
def test_code_that_changes_the_own_values_of_one_worker_alone_is_named(is_used):
  with tf.distribute.MirroredStrategy(["cpu:0"]).scope():
    own = tf.Variable([1.0, 2.0], synchronization=tf.VariableSynchronization.ON_READ,
                      aggregation=tf.VariableAggregation.MEAN)
  # The other process changes nothing.
  answers = iter([float(zlib.crc32(b"[]") % 2 ** 24), -1.0, 0.0])
  cluster = types.SimpleNamespace(
      num_pipelines=2, worker_id=0, joined=lambda values: np.concatenate([values, values]),
      by_worker=lambda value: np.array([value, next(answers) if is_used else value]))
  variables = snapshot.Variables({"net/own": own}, cluster)
  assert variables.use([own] if is_used else []) == []
  with (pytest.raises(UsageError, match=r"evaluate at step 4 changed 'net/own' \(")
        if is_used else contextlib.nullcontext(),
        variables.changed_alike("evaluate at step 4", lambda: 0)):
    own.assign([1.0, 3.0])
