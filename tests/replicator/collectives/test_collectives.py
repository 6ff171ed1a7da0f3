"""Collectives against NumPy, and against the same program on one replica."""

import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import Replicator
from tests.programs import every_collective
from tests.programs.closeness import nests_close
from tests.programs.processes import launched
from tests.replicator.collectives.replicas import to_numpy


@pytest.mark.parametrize("replicas, groups", [(1, [[0]]), (2, None), (4, [[0, 3], [2, 1]])])
def test_values_and_gradients_are_those_of_the_formulas(replicas, groups):
  every_collective.check(Replicator("mirrored", logical_cpus=replicas), groups)


def test_values_and_gradients_by_the_sums_of_a_tpu(monkeypatch):
  # There is no TPU here: its way to make the moves runs on CPUs.
  monkeypatch.setattr(tf.distribute, "TPUStrategy", tf.distribute.MirroredStrategy)
  every_collective.check(Replicator("mirrored", logical_cpus=2), None)


@pytest.mark.slow
def test_values_and_gradients_in_several_processes():
  processes = 3
  done = launched([f"--workers={processes}"], "tests.programs.every_collective")
  assert done.stdout.count(f"checked {processes} replicas") == processes


def test_in_plain_code_every_collective_acts_on_one_replica():
  x = tf.constant([[1.0, 2.0]])
  np.testing.assert_array_equal(replicator.all_gather(x), [[[1.0, 2.0]]])
  np.testing.assert_array_equal(replicator.all_concat(x), x)
  for name in ("all_sum", "all_mean", "all_min", "all_max", "reduce_scatter", "all_to_all"):
    np.testing.assert_array_equal(getattr(replicator, name)({"x": x})["x"], x)
  np.testing.assert_array_equal(replicator.broadcast(x, 0), x)
  assert [int(y) for y in replicator.map_gather([1, 2], lambda item: item + 1)] == [2, 3]
  assert int(replicator.map_reduce([1, 2], lambda item: item + 1)) == 5


# Each statistic s(w x) of the global batch in two ways: from the global batch, and by collectives
# from the replicas' own examples.
STATISTICS = [
    (lambda y: tf.reduce_logsumexp(y, 0),
     lambda y: tf.reduce_logsumexp(replicator.all_gather(tf.reduce_logsumexp(y, 0)), 0)),
    (lambda y: tf.reduce_sum(y, 0) * tf.reduce_sum(y ** 3, 0),
     lambda y: tf.multiply(*replicator.all_sum((tf.reduce_sum(y, 0), tf.reduce_sum(y ** 3, 0)))))]
EXAMPLES = np.random.default_rng(0).normal(size=[4, 2])


def loss_and_gradients(statistic, x: tf.Tensor) -> list[tf.Tensor]:
  """The loss, its gradient, and the gradient of the squared norm of that."""
  w = tf.constant([0.3, -0.8], tf.float64)
  with tf.GradientTape() as outer:
    outer.watch(w)
    with tf.GradientTape() as inner:
      inner.watch(w)
      y = w * x
      loss = tf.reduce_mean(tf.sin(y) * tf.tanh(statistic(y)))
    # The same number on every replica, like every quantity that is averaged.
    gradient = replicator.all_mean(inner.gradient(loss, w))
    penalty = tf.reduce_sum(gradient ** 2)
  return [replicator.all_mean(loss), gradient, replicator.all_mean(outer.gradient(penalty, w))]


def test_the_mean_of_the_replicas_gradients_is_that_of_one_replica(synchronous):
  expected = [loss_and_gradients(of_all, tf.constant(EXAMPLES)) for of_all, _ in STATISTICS]
  step = lambda x: [loss_and_gradients(of_parts, x) for _, of_parts in STATISTICS]
  for results in synchronous.run(step, EXAMPLES):
    nests_close(results, expected, 1e-12)


ITEMS = [np.random.default_rng(i).normal(size=[1 + i, 3]) for i in range(3)]  # Shapes differ.
WEIGHTS = np.array([0.3, -0.8, 1.1])


def gram(w: tf.Tensor, item: tf.Tensor) -> dict:
  """A matrix, a number and nothing, which depend on the item and on weights [3]."""
  scaled = item * tf.convert_to_tensor(w)
  return {"gram": tf.matmul(scaled, scaled, transpose_a=True), "rows": tf.shape(item)[0],
          "none": None}


def test_items_are_divided_and_their_results_are_everywhere():
  def step():
    w = tf.constant(WEIGHTS)
    items = [tf.constant(item) for item in ITEMS]
    with tf.GradientTape() as tape:
      tape.watch(w)
      gathered = replicator.map_gather(items, lambda item: gram(w, item))
      mean = replicator.map_reduce(items, lambda item: gram(w, item)["gram"], "mean")
      loss = tf.reduce_sum(mean ** 2) + tf.add_n([tf.reduce_sum(x["gram"] ** 3) for x in gathered])
    assert all(x["none"] is None for x in gathered)
    return gathered, loss, replicator.all_mean(tape.gradient(loss, w))

  w = tf.constant(WEIGHTS)
  with tf.GradientTape() as tape:
    tape.watch(w)
    grams = tf.stack([gram(w, item)["gram"] for item in ITEMS])
    expected_loss = tf.reduce_sum(tf.reduce_mean(grams, 0) ** 2) + tf.reduce_sum(grams ** 3)
  expected_gradient = tape.gradient(expected_loss, w)
  for gathered, loss, gradient in Replicator("mirrored", logical_cpus=2).run(step):
    for result, item, reference in zip(gathered, ITEMS, grams, strict=True):
      np.testing.assert_allclose(result["gram"], reference, rtol=1e-12)
      assert result["rows"] == len(item)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-12)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-11)


def test_results_of_items_are_reduced():
  items, expected = [8.0, -1.0, 2.0], {"sum": 9, "mean": 3, "min": -1, "max": 8}
  step = lambda: [replicator.map_reduce(items, tf.identity, op) for op in expected]
  for results in Replicator("mirrored", logical_cpus=2).run(step):
    np.testing.assert_allclose(results, list(expected.values()), rtol=1e-6)


def test_each_item_is_computed_by_one_replica_of_each_group():
  def step():
    owner = lambda item: tf.cast(replicator.replica_id(), tf.int32)
    return [replicator.map_gather([0, 1, 2], owner, groups) for groups in (None, [[0, 3], [2, 1]])]
  for replica, results in enumerate(Replicator("mirrored", logical_cpus=4).run(step)):
    of_all, of_group = to_numpy(results)
    assert of_all == [0, 1, 2]
    assert of_group == ([0, 3, 0] if replica in (0, 3) else [2, 1, 2])
