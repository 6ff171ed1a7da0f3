"""Collectives against the RFC's example, NumPy, and the same program on one replica."""

import collections
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import tree
from tensorflow.python.ops import custom_gradient

from replicator import (
  GlobalBatchNorm,
  Replicator,
  UsageError,
  all_concat,
  all_gather,
  all_max,
  all_mean,
  all_min,
  all_sum,
  all_to_all,
  broadcast,
  map_gather,
  map_reduce,
  num_replicas,
  recompute_grad,
  reduce_scatter,
  replica_id,
)
from replicator.step import context
from tests.programs import every_collective

PAIRS = pytest.mark.parametrize("strategy", ["mirrored", "central_storage"])

# The two-replica example of the Replicator RFC (tensorflow/community, commit 6a4e31d,
# rfcs/20181016-replicator.md): what replicas 0 and 1 pass in, and what each of the two gets. The
# means are half the sums.
RFC_INPUTS = {"a": np.array([1, 3]), "b": np.array([[40, 1], [2, 98]])}
RFC_RESULTS = [(all_sum, np.int32, {"a": 4, "b": [42, 99]}),
               (all_mean, np.float32, {"a": 2, "b": [21, 49.5]}),
               (all_min, np.int32, {"a": 1, "b": [2, 1]}),
               (all_max, np.int32, {"a": 3, "b": [40, 98]}),
               (lambda x: broadcast(x, 1), np.int32, {"a": 3, "b": [2, 98]}),
               (all_gather, np.int32, {"a": [1, 3], "b": [[40, 1], [2, 98]]})]


def to_numpy(nest):
  return tree.map_structure(lambda x: None if x is None else x.numpy(), nest)


def own_number(dtype="float32") -> tf.Tensor:
  """1 on the first replica, 2 on the second, ..."""
  return tf.cast(replica_id() + 1, dtype)


@PAIRS
def test_the_example_of_the_rfc(strategy):
  def step(batch):
    own = {name: value[0] for name, value in batch.items()}
    as_dtype = lambda dtype: tree.map_structure(lambda x: tf.cast(x, tf.as_dtype(dtype)), own)
    return [collective(as_dtype(dtype)) for collective, dtype, _ in RFC_RESULTS]
  results = Replicator(strategy, logical_cpus=2).run(step, RFC_INPUTS)
  assert len(results) == 2
  for result in results:
    for values, (_, _, expected) in zip(result, RFC_RESULTS, strict=True):
      np.testing.assert_equal(to_numpy(values), {k: np.array(v) for k, v in expected.items()})


# ---- Every collective, its groups and its gradient ----------------------------------------------

GROUPS = {1: [[0]], 2: [[1], [0]], 4: [[0, 3], [2, 1]], 8: [[0, 2, 4, 6], [7, 5, 3, 1]]}


@pytest.mark.parametrize("strategy, replicas, groups", [
    ("one_device", 1, None), ("mirrored", 2, None), ("mirrored", 4, None),
    ("central_storage", 2, None), ("one_device", 1, GROUPS[1]), ("central_storage", 2, GROUPS[2]),
    ("mirrored", 4, GROUPS[4]), pytest.param("mirrored", 8, None, marks=pytest.mark.slow),
    pytest.param("mirrored", 8, GROUPS[8], marks=pytest.mark.slow)])
def test_values_and_gradients_are_those_of_the_formulas(strategy, replicas, groups):
  every_collective.check(Replicator(strategy, logical_cpus=replicas), groups)


def test_values_and_gradients_by_the_sums_of_a_tpu(monkeypatch):
  # There is no TPU here: its way to make the moves runs on CPUs.
  monkeypatch.setattr(tf.distribute, "TPUStrategy", tf.distribute.MirroredStrategy)
  every_collective.check(Replicator("mirrored", logical_cpus=2), None)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_values_and_gradients_in_several_processes(processes):
  outcome = subprocess.run(
      [sys.executable, "-m", "replicator.launch", f"--workers={processes}", "--",
       sys.executable, "-m", "tests.programs.every_collective"],
      capture_output=True, text=True, timeout=300)
  assert outcome.returncode == 0, outcome.stdout + outcome.stderr
  assert outcome.stdout.count(f"checked {processes} replicas") == processes


def test_in_plain_code_every_collective_acts_on_one_replica():
  every_collective.check(Replicator("default"), None)
  x = tf.constant([[1.0, 2.0]])
  np.testing.assert_array_equal(all_gather(x), [[[1.0, 2.0]]])
  np.testing.assert_array_equal(all_concat(x), x)
  for collective in (all_sum, all_mean, all_min, all_max, reduce_scatter, all_to_all):
    np.testing.assert_array_equal(collective({"x": x})["x"], x)
  np.testing.assert_array_equal(broadcast(x, 0), x)
  assert [int(y) for y in map_gather([1, 2], lambda item: item + 1)] == [2, 3]
  assert int(map_reduce([1, 2], lambda item: item + 1)) == 5


# ---- Structures and dtypes ----------------------------------------------------------------------


def test_all_replicas_take_part(synchronous):
  n = synchronous.num_replicas
  results = synchronous.run(
      lambda: (all_sum(own_number()), all_mean(own_number()), all_gather(own_number())))
  assert len(results) == n
  for total, mean, gathered in to_numpy(results):
    assert total == n * (n + 1) / 2
    assert mean == (n + 1) / 2
    np.testing.assert_array_equal(gathered, np.arange(1, n + 1))


@pytest.mark.parametrize("replicas", range(2, 9))
def test_every_replica_counts_whatever_their_number(replicas):
  # TensorFlow's hierarchical copy forgets the last of an odd number of devices.
  step = lambda: all_sum([own_number(dtype) for dtype in ("float32", "float64", "int32")])
  for sums in Replicator("mirrored", logical_cpus=replicas).run(step):
    assert [int(x) for x in sums] == [replicas * (replicas + 1) // 2] * 3


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
  values = {"a": tf.constant(3.0), "b": (tf.constant([1.0, 2.0]), None)}
  for collective in (all_sum, all_mean):
    np.testing.assert_equal(to_numpy(collective(values)), to_numpy(values))
  np.testing.assert_equal(to_numpy(all_gather(values)),
                          {"a": np.array([3.0]), "b": (np.array([[1.0, 2.0]]), None)})


# As NumPy's sums of them are wider.
SUMS = {"int8": "int32", "uint8": "int32", "int16": "int32", "uint16": "int32", "uint32": "int64",
        "int32": "int32", "int64": "int64"}


@pytest.mark.parametrize("replicas", [1, 4])
def test_sums_of_every_integer_dtype_fit_theirs(replicas):
  def step():
    largest = {dtype: tf.constant(np.iinfo(dtype).max // (1 if dtype != wide else 8), dtype,
                                  [replicas]) for dtype, wide in SUMS.items()}
    return all_sum(largest), reduce_scatter(largest)
  for result in Replicator("mirrored", logical_cpus=replicas).run(step):
    for dtype, wide in SUMS.items():
      value = np.iinfo(dtype).max // (1 if dtype != wide else 8)
      for summed, shape in zip(result, ([replicas], [1]), strict=True):
        np.testing.assert_array_equal(
            summed[dtype], np.full(shape, replicas * value, wide), strict=True)


def test_the_sum_of_small_integers_of_items_does_not_wrap():
  step = lambda: [map_reduce([tf.constant(100, "int8")] * 4, tf.identity, op)
                  for op in ("sum", "mean", "max")]
  for replicas in (1, 2):
    for total, mean, largest in Replicator("mirrored", logical_cpus=replicas).run(step):
      assert (total.dtype, int(total), float(mean)) == (tf.int32, 400, 100)
      assert (largest.dtype, int(largest)) == (tf.int8, 100)


def test_small_and_boolean_dtypes_are_kept_where_nothing_is_added_up():
  def step():
    first = replica_id() == 0
    numbers = {dtype: tf.fill([2], own_number(dtype)) for dtype in SUMS}
    return {"max": all_max(numbers), "any": all_max(first), "all": all_min(first),
            "gather": all_gather(first), "source": broadcast(first, 1)}
  for result in Replicator("mirrored", logical_cpus=4).run(step):
    for dtype, value in result["max"].items():
      np.testing.assert_array_equal(value, np.array([4, 4], dtype), strict=True)
    assert result["any"].numpy() and not result["all"].numpy() and not result["source"].numpy()
    np.testing.assert_array_equal(result["gather"], [True, False, False, False], strict=True)


@pytest.mark.parametrize("dtype, spacing", [("bfloat16", 2), ("float16", 0.25)])
def test_sums_of_small_floats_are_rounded_once(dtype, spacing):
  # 256 + 7 x spacing / 2: adding them up in the dtype itself would drop each small one.
  def step():
    value = tf.where(replica_id() == 0, 256.0, spacing / 2)
    return all_sum(tf.cast(value, dtype)), 8 * all_mean(tf.cast(value, dtype))
  for total, mean in Replicator("mirrored", logical_cpus=8).run(step):
    assert total.dtype == mean.dtype == dtype
    np.testing.assert_equal([float(total), float(mean)], [256 + 4 * spacing] * 2)


def test_the_mean_of_large_values_does_not_overflow():
  large = np.full([2], 3e38, np.float32)  # Their sum is no float32.
  for mean in Replicator("mirrored", logical_cpus=2).run(all_mean, large):
    np.testing.assert_allclose(mean, [3e38], rtol=1e-6)


@PAIRS
def test_all_gather_keeps_nan_and_infinity_in_their_slots(strategy):
  values = np.array([[np.nan, 1.0], [-np.inf, 2.0]])
  for gathered in Replicator(strategy, logical_cpus=2).run(lambda x: all_gather(x[0]), values):
    np.testing.assert_array_equal(gathered, values)


# ---- Lengths that differ, or are not known before the step runs ---------------------------------

LENGTHS = [3, 0, 1, 2]  # How many examples each replica has.
UNEQUAL = np.split(np.random.default_rng(1).normal(size=[sum(LENGTHS), 2]), np.cumsum(LENGTHS)[:-1])


def own_rows(is_known: bool) -> tf.Tensor:
  """The rows of this replica, with a static length or not."""
  if is_known:
    return tf.constant(UNEQUAL[static_id()])
  owners = np.repeat(range(len(LENGTHS)), LENGTHS)
  return tf.boolean_mask(np.concatenate(UNEQUAL), tf.equal(owners, tf.cast(replica_id(), "int64")))


@pytest.mark.parametrize("is_known, eager", [(False, False), (True, False), (True, True)],
                         ids=["unknown", "static", "eager"])
@pytest.mark.parametrize("groups", [None, [[0, 3], [2, 1]]])
def test_tensors_of_other_lengths_are_joined_with_their_gradients(groups, is_known, eager, request):
  if eager:
    request.getfixturevalue("run_eagerly")()

  def step():
    x = own_rows(is_known)
    with tf.GradientTape() as tape:
      tape.watch(x)
      joined = all_concat(x, groups=groups)
      places = tf.cast(tf.range(tf.size(joined)), x.dtype)
      loss = own_number(x.dtype) * tf.reduce_sum(places * tf.reshape(joined ** 2, [-1]))
    columns, _, signs = all_concat([tf.transpose(x), None, tf.transpose(x) > 0], -1, groups)
    assert joined.shape[1:] == [2] and columns.shape[:1] == [2]  # Known where they can be.
    return joined, columns, signs, tape.gradient(loss, x)

  results = Replicator("mirrored", logical_cpus=4).run(step)
  for group in groups or [[0, 1, 2, 3]]:
    expected = np.concatenate([UNEQUAL[r] for r in group])
    # Each replica r adds (r + 1) times the gradient of the same sum.
    gradient = sum(r + 1 for r in group) * 2 * expected * np.arange(expected.size).reshape(-1, 2)
    ends = np.cumsum([0] + [LENGTHS[r] for r in group])
    for place, replica in enumerate(group):
      joined, columns, signs, dx = results[replica]
      np.testing.assert_array_equal(joined, expected)
      np.testing.assert_array_equal(columns, expected.T)
      np.testing.assert_array_equal(signs, expected.T > 0, strict=True)
      np.testing.assert_allclose(dx, gradient[ends[place]:ends[place + 1]], rtol=1e-12)


def test_tensors_of_unknown_shapes_travel_together(synchronous):
  x = np.arange(4.0)

  def step(own):
    first = tf.boolean_mask(x, x < 3)  # [3], but unknown to the graph, as is the next.
    second = tf.boolean_mask(tf.stack([x, -x], 1), x < 2)
    return all_sum([first, second]), all_mean((first, own)), all_max([first, second])

  n = synchronous.num_replicas
  for sums, (mean, _), largest in synchronous.run(step, np.ones([4])):
    np.testing.assert_array_equal(sums[0], n * x[:3])
    np.testing.assert_array_equal(sums[1], n * np.stack([x, -x], 1)[:2])
    np.testing.assert_array_equal(mean, x[:3])
    np.testing.assert_array_equal(largest[1], np.stack([x, -x], 1)[:2])


def transfers(step) -> list[context.Transfer]:
  """What a step moves on the last of two replicas."""
  moved = []
  def recorded():
    step()
    moved[:] = context.current().transfers
  Replicator("mirrored", logical_cpus=2).run(recorded)
  return moved


def test_equal_lengths_make_no_collective_of_their_own():
  assert transfers(lambda: all_concat(tf.ones([2, 3]))) == [context.Transfer("all_gather", 24)]


def test_leaves_of_one_dtype_travel_together():
  floats = [np.zeros(shape, np.float32) for shape in ([2], [3, 4], [])]
  assert transfers(lambda: all_sum([*floats, tf.zeros([3], tf.int32), tf.zeros([2], tf.float64)])
                   ) == [context.Transfer("all_reduce", size) for size in (15 * 4, 16, 12)]


def test_the_transfers_of_gradients_count_too():
  x = tf.zeros([4, 2])
  def step(collective):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = collective(x)
    tape.gradient(y, x)
  assert transfers(lambda: step(all_mean)) == [context.Transfer("all_reduce", 32)] * 2
  assert transfers(lambda: step(all_gather)) == [
      context.Transfer("all_gather", 32), context.Transfer("all_to_all", 64)]
  assert transfers(lambda: step(reduce_scatter)) == [context.Transfer("all_to_all", 32)] * 2


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


# ---- Items divided among replicas ---------------------------------------------------------------

ITEMS = [np.random.default_rng(i).normal(size=[1 + i, 3]) for i in range(3)]  # Shapes differ.
WEIGHTS = np.array([0.3, -0.8, 1.1])


def gram(w: tf.Tensor, item: tf.Tensor) -> dict:
  """A matrix, a number and nothing, which depend on the item and on weights [3]."""
  scaled = item * tf.convert_to_tensor(w)
  return {"gram": tf.matmul(scaled, scaled, transpose_a=True), "rows": tf.shape(item)[0],
          "none": None}


@pytest.mark.parametrize("replicas", [1, 2])
def test_items_are_divided_and_their_results_are_everywhere(replicas):
  expected = [(x * WEIGHTS).T @ (x * WEIGHTS) for x in ITEMS]

  def step():
    w = tf.constant(WEIGHTS)
    items = [tf.constant(item) for item in ITEMS]
    with tf.GradientTape(persistent=True) as tape:
      tape.watch(w)
      gathered = map_gather(items, lambda item: gram(w, item))
      losses = {op: tf.reduce_sum(map_reduce(items, lambda item: gram(w, item)["gram"], op) ** 2)
                for op in ("mean", "max")}
      losses["gather"] = tf.add_n([tf.reduce_sum(x["gram"] ** 3) for x in gathered])
    assert all(x["none"] is None for x in gathered)
    return (gathered, losses, all_mean([tape.gradient(loss, w) for loss in losses.values()]))

  w = tf.constant(WEIGHTS)
  with tf.GradientTape(persistent=True) as tape:
    tape.watch(w)
    grams = tf.stack([gram(w, item)["gram"] for item in ITEMS])
    reductions = {"mean": tf.reduce_mean, "max": tf.reduce_max}
    references = {op: tf.reduce_sum(reduce(grams, 0) ** 2) for op, reduce in reductions.items()}
    references["gather"] = tf.reduce_sum(grams ** 3)
  for gathered, losses, gradients in Replicator("mirrored", logical_cpus=replicas).run(step):
    for result, item, reference in zip(gathered, ITEMS, expected, strict=True):
      np.testing.assert_allclose(result["gram"], reference, rtol=1e-12)
      assert result["rows"] == len(item)
    for (name, reference), gradient in zip(references.items(), gradients, strict=True):
      np.testing.assert_allclose(losses[name], reference, rtol=1e-12, err_msg=name)
      np.testing.assert_allclose(gradient, tape.gradient(reference, w), rtol=1e-11, err_msg=name)


@pytest.mark.parametrize("op, expected", [("sum", 9), ("mean", 3), ("min", -1), ("max", 8)])
def test_results_of_items_are_reduced(op, expected):
  for result in Replicator("mirrored", logical_cpus=2).run(
      lambda: map_reduce([8.0, -1.0, 2.0], tf.identity, op)):
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_each_item_is_computed_by_one_replica_of_each_group():
  def step():
    owner = lambda item: tf.cast(replica_id(), tf.int32)
    return map_gather([0, 1, 2], owner), map_gather([0, 1, 2], owner, groups=[[0, 3], [2, 1]])
  for replica, results in enumerate(Replicator("mirrored", logical_cpus=4).run(step)):
    of_all, of_group = to_numpy(results)
    assert of_all == [0, 1, 2]
    assert of_group == ([0, 3, 0] if replica in (0, 3) else [2, 1, 2])


# ---- Calls that cannot be right -----------------------------------------------------------------


def static_id() -> int:
  return int(tf.get_static_value(replica_id()))


DISAGREEMENTS = {
    "another collective": lambda x: all_sum(x) if static_id() else all_mean(x),
    "another structure": lambda x: all_sum([x] if static_id() else (x,)),
    "another shape": lambda x: all_sum(x[:1 + static_id()]),
    "another dtype": lambda x: all_sum(tf.cast(x, tf.int32) if static_id() else x),
    "another order": lambda x: [(all_sum, all_max)[i](x) for i in (static_id(), 1 - static_id())],
    "another width": lambda x: all_concat(x[:, :1 + static_id()]),
    "another source": lambda x: broadcast(x, static_id()),
    "other groups": lambda x: all_sum(x, [[0, 1]] if static_id() else [[1, 0]]),
    "one call more": lambda x: [all_sum(x)] * 2 if static_id() else [all_sum(x), all_max(x)],
}


@pytest.mark.parametrize("eager", [False, True], ids=["compiled", "eager"])
@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_replicas_that_make_different_calls_are_refused(name, eager, request):
  if eager:
    request.getfixturevalue("run_eagerly")()
  message = r"^replica [01] calls (all_|broadcast).* but replica [01] (calls|has)"
  with pytest.raises(UsageError, match=message):
    Replicator("mirrored", logical_cpus=2).run(DISAGREEMENTS[name], np.ones([4, 2]))


@pytest.mark.parametrize("within", [
    lambda x: tf.while_loop(lambda y: y < 3, lambda y: [all_sum(y)], [x]),
    lambda x: tf.cond(x > 0, lambda: all_sum(x), lambda: x),
    lambda x: tf.function(all_sum, autograph=False)(x)], ids=["loop", "branch", "function"])
def test_a_collective_where_replicas_cannot_meet_is_refused(within):
  called = r"py:\d+: all_sum of float32 \(\): called inside a tf.while_loop"
  with pytest.raises(UsageError, match=called):
    Replicator("mirrored", logical_cpus=2).run(lambda: within(tf.constant(1.0)))


REFUSED = {
    "disjoint, of equal size, and together hold all 2 replicas": [
        lambda x: all_sum(x, [[0]]), lambda x: all_sum(x, [[0, 0]]), lambda x: all_sum(x, []),
        lambda x: all_sum(x, [[0, 1], [1, 0]]), lambda x: all_sum(x, [[0, 1], []])],
    "broadcast: source = 2: write a replica from 0 to 1": [lambda x: broadcast(x, 2)],
    "does not divide by the group's 2 replicas": [
        lambda x: reduce_scatter(x[:1]), lambda x: all_to_all(x[0, 0])],
    "has no such axis": [lambda x: all_concat(x, axis=2)],
    "all_mean: a tensor is int32, .* or use all_sum": [lambda x: all_mean(tf.cast(x, tf.int32))],
    "all_mean: a tensor is uint8": [lambda x: all_mean(tf.cast(x, tf.uint8))],
    "all_mean: a tensor is bool, and its mean may not be; cast it to float32$": [
        lambda x: all_mean(x > 0)],
    "all_sum: a tensor is bool": [lambda x: all_sum(x > 0)],
    "tensors of string cannot travel": [lambda x: all_gather("a word")],
    "map_gather: there are no items": [lambda x: map_gather([], tf.identity)],
    "all_concat, axis 0: a tensor has an unknown number of axes; .*ensure_shape": [
        lambda x: all_concat(tf.py_function(lambda: x, [], tf.float64))],
    "op = 'product': write 'sum'": [lambda x: map_reduce([x], tf.identity, "product")],
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_call_that_makes_no_sense_is_refused(message):
  replicator = Replicator("mirrored", logical_cpus=2)
  for step in REFUSED[message]:
    with pytest.raises(UsageError, match=message):
      replicator.run(step, np.ones([4, 2]))


# ---- The cost of tracing ------------------------------------------------------------------------


def test_no_collective_searches_the_graphs_of_the_other_replicas(monkeypatch):
  # `tf.custom_gradient` does, for variables: the time to trace would grow with the square of the
  # number of layers.
  def searched(*_, **__):
    raise AssertionError("searches the graph")
  monkeypatch.setattr(custom_gradient, "_get_dependent_variables", searched)
  network = keras.Sequential([keras.Input([3]), GlobalBatchNorm(), keras.layers.Dense(2)])
  block = recompute_grad(network)
  def step(x):
    with tf.GradientTape() as tape:
      loss = tf.reduce_mean(all_mean(block(x, training=True)) ** 2)
    return tape.gradient(loss, network.trainable_variables)
  replicator = Replicator("mirrored", logical_cpus=2)
  assert len(replicator.run(step, np.ones([4, 3], np.float32))) == 2
