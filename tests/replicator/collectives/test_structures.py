"""Nests, shapes and dtypes go through collectives, whatever the number of replicas."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import Replicator
from tests.replicator.collectives.replicas import own_number, to_numpy


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


def test_the_sum_of_small_integers_of_items_does_not_wrap():
  step = lambda: [replicator.map_reduce([tf.constant(100, "int8")] * 4, tf.identity, op)
                  for op in ("sum", "mean", "max")]
  for total, mean, largest in Replicator("mirrored", logical_cpus=2).run(step):
    assert (total.dtype, int(total), float(mean)) == (tf.int32, 400, 100)
    assert (largest.dtype, int(largest)) == (tf.int8, 100)


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
