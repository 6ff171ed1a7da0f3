"""Collectives against the RFC's example, NumPy, and the same program on one replica."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tree

from replicator import Replicator, all_gather, all_mean, all_sum, num_replicas, replica_id

PAIRS = pytest.mark.parametrize("strategy", ["mirrored", "central_storage"])

# The two-replica example of the Replicator RFC (tensorflow/community, commit 6a4e31d,
# rfcs/20181016-replicator.md): what replicas 0 and 1 pass in, and what each of them gets. The
# means are half the sums.
RFC_INPUTS = {"a": np.array([1, 3]), "b": np.array([[40, 1], [2, 98]])}
RFC_RESULTS = [(all_sum, int, {"a": 4, "b": [42, 99]}),
               (all_mean, float, {"a": 2, "b": [21, 49.5]}),
               (all_gather, int, {"a": [1, 3], "b": [[40, 1], [2, 98]]})]


def to_numpy(nest):
  return tree.map_structure(lambda x: None if x is None else x.numpy(), nest)


def own_number(dtype="float32") -> tf.Tensor:
  """1 on the first replica, 2 on the second, ..."""
  return tf.cast(replica_id() + 1, dtype)


@PAIRS
@pytest.mark.parametrize("collective, dtype, expected", RFC_RESULTS)
def test_the_example_of_the_rfc(strategy, collective, dtype, expected):
  inputs = {name: value.astype(dtype) for name, value in RFC_INPUTS.items()}
  results = Replicator(strategy, logical_cpus=2).run(
      lambda batch: collective({name: value[0] for name, value in batch.items()}), inputs)
  assert len(results) == 2
  for result in results:
    np.testing.assert_equal(to_numpy(result), {k: np.array(v) for k, v in expected.items()})


def test_all_replicas_take_part(synchronous):
  n = synchronous.num_replicas
  results = synchronous.run(
      lambda: (all_sum(own_number()), all_mean(own_number()), all_gather(own_number())))
  assert len(results) == n
  for total, mean, gathered in to_numpy(results):
    assert total == n * (n + 1) / 2
    assert mean == (n + 1) / 2
    np.testing.assert_array_equal(gathered, np.arange(1, n + 1))


@PAIRS
@pytest.mark.parametrize("collective", [all_sum, all_mean, all_gather])
def test_nests_keep_their_structure_and_their_nones(strategy, collective):
  Pair = collections.namedtuple("Pair", "x y")
  def step():
    one = own_number()
    result = collective({"none": None, "pair": Pair(one, None), "list": [(2 * one,), None]})
    assert result["none"] is None and result["list"][1] is None
    assert type(result["pair"]) is Pair and result["pair"].y is None
    assert type(result["list"]) is list and type(result["list"][0]) is tuple
    return [result["pair"].x, result["list"][0][0]]
  expected = {all_sum: [3, 6], all_mean: [1.5, 3], all_gather: [[1, 2], [2, 4]]}[collective]
  for result in Replicator(strategy, logical_cpus=2).run(step):
    np.testing.assert_equal(to_numpy(result), [np.array(e) for e in expected])


@PAIRS
def test_dtypes_and_shapes_are_kept(strategy):
  shapes = {"scalar": [], "vector": [3], "matrix": [2, 3], "empty": [0, 2]}
  dtypes = ["float32", "float64", "int32", "int64", "bfloat16"]
  def step():
    values = {f"{dtype} {name}": tf.fill(shape, own_number(dtype))
              for dtype in dtypes for name, shape in shapes.items()}
    return all_sum(values), all_gather(values)
  for summed, gathered in Replicator(strategy, logical_cpus=2).run(step):
    for key, value in summed.items():
      dtype, name = key.split()
      assert value.dtype == gathered[key].dtype == dtype
      assert value.shape == shapes[name]
      assert gathered[key].shape == [2, *shapes[name]]
      np.testing.assert_array_equal(tf.cast(value, tf.float64), np.full(shapes[name], 3))
      np.testing.assert_array_equal(tf.cast(gathered[key], tf.float64),
                                    [np.full(shapes[name], 1), np.full(shapes[name], 2)])


def test_in_plain_code_there_is_one_replica():
  values = {"a": tf.constant(3.0), "b": (tf.constant([1, 2]), None)}
  for collective in (all_sum, all_mean):
    np.testing.assert_equal(to_numpy(collective(values)), to_numpy(values))
  np.testing.assert_equal(to_numpy(all_gather(values)),
                          {"a": np.array([3.0]), "b": (np.array([[1, 2]]), None)})


def test_the_mean_of_large_values_does_not_overflow():
  large = np.full([2], 3e38, np.float32)  # Their sum is no float32.
  for mean in Replicator("mirrored", logical_cpus=2).run(all_mean, large):
    np.testing.assert_allclose(mean, [3e38], rtol=1e-6)


@PAIRS
def test_all_gather_keeps_nan_and_infinity_in_their_slots(strategy):
  values = np.array([[np.nan, 1.0], [-np.inf, 2.0]])
  for gathered in Replicator(strategy, logical_cpus=2).run(lambda x: all_gather(x[0]), values):
    np.testing.assert_array_equal(gathered, values)


def test_leaves_of_one_dtype_travel_together(monkeypatch):
  calls = []
  all_reduce = tf.distribute.ReplicaContext.all_reduce
  def counted(self, op, value, options=None):
    calls.append(value.dtype.name)
    return all_reduce(self, op, value, options)
  monkeypatch.setattr(tf.distribute.ReplicaContext, "all_reduce", counted)
  def step():
    floats = [tf.zeros([2]), tf.zeros([3, 4]), tf.zeros([])]
    return all_sum([*floats, tf.zeros([2], tf.int32), tf.zeros([2], tf.float64)])
  Replicator("mirrored", logical_cpus=2).run(step)
  assert sorted(calls) == ["float32"] * 2 + ["float64"] * 2 + ["int32"] * 2  # Of two replicas.


# ---- Gradients ----------------------------------------------------------------------------------

# Each statistic s(w x) of the global batch in two ways: from the global batch, and by collectives
# from the replicas' own examples.
STATISTICS = {
    "all_sum": (lambda y: tf.reduce_sum(y, 0), lambda y: all_sum(tf.reduce_sum(y, 0))),
    "all_gather": (lambda y: tf.reduce_logsumexp(y, 0),
                   lambda y: tf.reduce_logsumexp(all_gather(tf.reduce_logsumexp(y, 0)), 0)),
    "a nest": (lambda y: tf.reduce_sum(y, 0) * tf.reduce_sum(y ** 3, 0),
               lambda y: tf.multiply(*all_sum((tf.reduce_sum(y, 0), tf.reduce_sum(y ** 3, 0))))),
}
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
    gradient = all_mean(inner.gradient(loss, w))
    penalty = tf.reduce_sum(gradient ** 2)
  return [all_mean(loss), gradient, all_mean(outer.gradient(penalty, w))]


@pytest.mark.parametrize("name", STATISTICS)
def test_the_mean_of_the_replicas_gradients_is_that_of_one_replica(name, synchronous):
  of_all, of_parts = STATISTICS[name]
  expected = loss_and_gradients(of_all, tf.constant(EXAMPLES))
  for result in synchronous.run(lambda x: loss_and_gradients(of_parts, x), EXAMPLES):
    for value, reference in zip(result, expected, strict=True):
      np.testing.assert_allclose(value, reference, rtol=1e-12)


def test_the_gradient_of_all_sum_is_all_sum():
  # d(sum over replicas r of r y) / dx with y = all_sum(x): every replica's x gets 1 + 2.
  def step():
    x = tf.constant(5.0)
    with tf.GradientTape() as tape:
      tape.watch(x)
      loss = own_number() * all_sum(x)
    return tape.gradient(loss, x)
  assert [g.numpy() for g in Replicator("mirrored", logical_cpus=2).run(step)] == [3, 3]


def test_collectives_know_the_number_of_replicas_eagerly(run_eagerly, synchronous):
  run_eagerly()
  for total in synchronous.run(lambda: all_sum(tf.constant(1))):
    assert total.numpy() == synchronous.num_replicas
  for count in synchronous.run(lambda: tf.constant(num_replicas())):
    assert count.numpy() == synchronous.num_replicas
