"""Collectives against NumPy, and against the same program on one replica; nests of any dtypes."""

import collections

import replicator
from replicator import Replicator
from tests.programs import every_collective
from tests.programs.closeness import nests_close
from tests.programs.processes import launched

import numpy as np
import pytest
import tensorflow as tf
import tree


def to_numpy(nest):
  return tree.map_structure(lambda x: None if x is None else x.numpy(), nest)


def own_number(dtype="float32") -> tf.Tensor:
  """1 on the first replica, 2 on the second, ..."""
  return tf.cast(replicator.replica_id() + 1, dtype)


# ---- Values and gradients -----------------------------------------------------------------------


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


# ---- Items --------------------------------------------------------------------------------------


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


def test_each_item_is_computed_by_one_replica_of_each_group():
  def step():
    owner = lambda item: tf.cast(replicator.replica_id(), tf.int32)
    return [replicator.map_gather([0, 1, 2], owner, groups) for groups in (None, [[0, 3], [2, 1]])]
  for replica, results in enumerate(Replicator("mirrored", logical_cpus=4).run(step)):
    of_all, of_group = to_numpy(results)
    assert of_all == [0, 1, 2]
    assert of_group == ([0, 3, 0] if replica in (0, 3) else [2, 1, 2])


# ---- Nests, shapes and dtypes -------------------------------------------------------------------


def test_nests_keep_their_structure_and_their_nones():
  Pair = collections.namedtuple("Pair", "x y")
  expected = {replicator.all_sum: [3, 6], replicator.all_mean: [1.5, 3],
              replicator.all_gather: [[1, 2], [2, 4]]}

  def step():
    one, results = own_number(), []
    for collective in expected:
      result = collective({"none": None, "pair": Pair(one, None), "list": [(2 * one,), None]})
      assert result["none"] is None and result["list"][1] is None
      assert type(result["pair"]) is Pair and result["pair"].y is None
      assert type(result["list"]) is list and type(result["list"][0]) is tuple
      results.append([result["pair"].x, result["list"][0][0]])
    return results

  for results in Replicator("mirrored", logical_cpus=2).run(step):
    for result, values in zip(results, expected.values(), strict=True):
      np.testing.assert_equal(to_numpy(result), [np.array(value) for value in values])


def test_dtypes_and_shapes_are_kept():
  shapes = {"scalar": [], "vector": [3], "matrix": [2, 3], "empty": [0, 2]}
  dtypes = ["float32", "float64", "int32", "int64", "bfloat16"]
  def step():
    values = {f"{dtype} {name}": tf.fill(shape, own_number(dtype))
              for dtype in dtypes for name, shape in shapes.items()}
    return replicator.all_sum(values), replicator.all_gather(values)
  for summed, gathered in Replicator("mirrored", logical_cpus=2).run(step):
    for key, value in summed.items():
      dtype, name = key.split()
      assert value.dtype == gathered[key].dtype == dtype
      assert value.shape == shapes[name]
      assert gathered[key].shape == [2, *shapes[name]]
      np.testing.assert_array_equal(tf.cast(value, tf.float64), np.full(shapes[name], 3))
      np.testing.assert_array_equal(tf.cast(gathered[key], tf.float64),
                                    [np.full(shapes[name], 1), np.full(shapes[name], 2)])


# As NumPy's sums of them are wider.
SUMS = {"int8": "int32", "uint8": "int32", "int16": "int32", "uint16": "int32", "uint32": "int64",
        "int32": "int32", "int64": "int64"}


def test_sums_of_every_integer_dtype_fit_theirs():
  replicas = 3  # TensorFlow's hierarchical copy forgets the last of an odd number of devices.

  def step():
    largest = {dtype: tf.constant(np.iinfo(dtype).max // (1 if dtype != wide else 8), dtype,
                                  [replicas]) for dtype, wide in SUMS.items()}
    return replicator.all_sum(largest), replicator.reduce_scatter(largest)
  for result in Replicator("mirrored", logical_cpus=replicas).run(step):
    for dtype, wide in SUMS.items():
      value = np.iinfo(dtype).max // (1 if dtype != wide else 8)
      for summed, shape in zip(result, ([replicas], [1]), strict=True):
        np.testing.assert_array_equal(
            summed[dtype], np.full(shape, replicas * value, wide), strict=True)


@pytest.mark.parametrize("dtype, wide", [("int8", tf.int32), ("float32", tf.float32)])
def test_results_of_items_are_reduced_and_the_sum_of_small_integers_does_not_wrap(dtype, wide):
  items = [tf.constant(number, dtype) for number in (125, -1, 120, 116)]
  step = lambda: [replicator.map_reduce(items, tf.identity, op)
                  for op in ("sum", "mean", "min", "max")]
  for total, mean, least, largest in Replicator("mirrored", logical_cpus=2).run(step):
    assert (total.dtype, int(total), float(mean)) == (wide, 360, 90)
    assert least.dtype == largest.dtype == dtype and (int(least), int(largest)) == (-1, 125)


def test_small_and_boolean_dtypes_are_kept_where_nothing_is_added_up():
  def step():
    first = replicator.replica_id() == 0
    numbers = {dtype: tf.fill([2], own_number(dtype)) for dtype in SUMS}
    return {"max": replicator.all_max(numbers), "any": replicator.all_max(first),
            "all": replicator.all_min(first), "gather": replicator.all_gather(first),
            "source": replicator.broadcast(first, 1)}
  for result in Replicator("mirrored", logical_cpus=4).run(step):
    for dtype, value in result["max"].items():
      np.testing.assert_array_equal(value, np.array([4, 4], dtype), strict=True)
    assert result["any"].numpy() and not result["all"].numpy() and not result["source"].numpy()
    np.testing.assert_array_equal(result["gather"], [True, False, False, False], strict=True)


@pytest.mark.parametrize("dtype, spacing", [("bfloat16", 2), ("float16", 0.25)])
def test_sums_of_small_floats_are_rounded_once(dtype, spacing):
  # 256 + 7 x spacing / 2: adding them up in the dtype itself would drop each small one.
  def step():
    value = tf.where(replicator.replica_id() == 0, 256.0, spacing / 2)
    return replicator.all_sum(tf.cast(value, dtype)), 8 * replicator.all_mean(tf.cast(value, dtype))
  for total, mean in Replicator("mirrored", logical_cpus=8).run(step):
    assert total.dtype == mean.dtype == dtype
    np.testing.assert_equal([float(total), float(mean)], [256 + 4 * spacing] * 2)


def test_the_mean_of_large_values_does_not_overflow():
  large = np.full([2], 3e38, np.float32)  # Their sum is no float32.
  for mean in Replicator("mirrored", logical_cpus=2).run(replicator.all_mean, large):
    np.testing.assert_allclose(mean, [3e38], rtol=1e-6)


def test_all_gather_keeps_nan_and_infinity_in_their_slots():
  values = np.array([[np.nan, 1.0], [-np.inf, 2.0]])
  step = lambda x: replicator.all_gather(x[0])
  for gathered in Replicator("mirrored", logical_cpus=2).run(step, values):
    np.testing.assert_array_equal(gathered, values)


@pytest.mark.parametrize("dtype, values, total", [
    ("bfloat16", [256.0] + 8 * [1.0], 264.0), ("float16", [6e4, 6e3, -6e4], 6e3)])
def test_half_floats_are_added_up_in_32_bits(dtype, values, total):
  items = [tf.constant(value, dtype) for value in values]
  found = replicator.map_reduce(items, tf.identity)
  assert found.dtype == dtype and float(found) == float(tf.cast(total, dtype))
  count = len(values)
  own = tf.constant(values, dtype)

  def step():
    mine = tf.gather(own, replicator.replica_id())
    return replicator.reduce_scatter(tf.fill([count], mine))[0]

  if count <= 4:
    parts = Replicator("mirrored", logical_cpus=count).run(step)
    assert [float(part) for part in parts] == [total] * count
