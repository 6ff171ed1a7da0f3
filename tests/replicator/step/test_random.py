"""Random streams: the draws belong to the example, and have their distributions."""

import functools
import itertools
import math
import re

import replicator
from replicator import Replicator, microbatch, random
from replicator.errors import UsageError
from replicator.step import random_bits
from replicator.step.collectives import collectives
from tests.programs.refusals import refusal

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

ROWS = 8  # In the global batch.


def all_kinds(rows: int) -> dict[str, tf.Tensor]:
  """Draws of every kind; odd sizes, so that no vector instruction divides them evenly."""
  return {
      "normal": random.normal("z", [rows, 7]),
      "again": random.normal("z", [rows, 7]),
      "normal64": random.normal("z64", [rows, 3], 1.0, 2.0, "float64"),
      "uniform": random.uniform("u", [rows]),
      "uniform64": random.uniform("u64", [rows, 1, 2], -1.0, 3.0, "float64"),
      "int32": random.uniform("label", [rows], 0, 10, "int32"),
      "int64": random.uniform("index", [rows, 2], -5, 2 ** 40, tf.int64),
      "truncated": random.truncated_normal("t", [rows, 5], 0.0, 2.0),
      "bernoulli": random.bernoulli("b", [rows, 7], 0.3),
      "categorical": random.categorical("c", random.uniform("logits", [rows, 5], -2.0, 2.0)),
      "permutation": random.permutation("p", [rows, 5]),
  }


INEXACT = {"normal": 1e-5, "normal64": 1e-12}


def draw(replicator: Replicator, draws=all_kinds, steps: int = 2) -> dict[str, np.ndarray]:
  """The draws of `steps` steps for the global batch: name -> [steps, ROWS, ...]."""
  step = lambda: draws(ROWS // replicator.num_replicas)
  parts = [replicator.run(step) for _ in range(steps)]
  return {name: np.stack([np.concatenate([replica[name] for replica in replicas])
                          for replicas in parts]) for name in parts[0][0]}


def one(**kwargs) -> Replicator:
  return Replicator("one_device", **kwargs)


@functools.cache
def drawn_alone() -> dict[str, np.ndarray]:
  """The reference: the draws of one replica in a compiled step, with seed 0."""
  return draw(one())


# ---- The same draws everywhere ------------------------------------------------------------------


def test_the_global_batch_gets_the_same_draws_on_four_replicas():
  np.testing.assert_equal(draw(Replicator("mirrored", logical_cpus=4)), drawn_alone())


def test_xla_draws_the_same():
  def some_kinds(rows):  # XLA compiles what is returned.
    drawn = all_kinds(rows)
    return {name: drawn[name] for name in (*INEXACT, "int64", "categorical", "permutation")}
  drawn = draw(one(jit_compile=True), some_kinds)
  for name, values in drawn.items():
    # The inverse error function of XLA rounds differently.
    np.testing.assert_allclose(values, drawn_alone()[name], rtol=INEXACT.get(name, 0), err_msg=name)


def test_eager_steps_and_their_micro_batches_draw_the_same(run_eagerly):
  expected = drawn_alone()
  run_eagerly()
  np.testing.assert_equal(draw(Replicator("mirrored", logical_cpus=2)), expected)
  assert_first_step(in_parts(one(), 2, all_kinds))


def two_kinds(rows: int) -> dict[str, tf.Tensor]:
  """Of `all_kinds`, those of 32 and of 64 bits whose rows are no whole numbers of Philox."""
  return {"normal": random.normal("z", [rows, 7]),
          "normal64": random.normal("z64", [rows, 3], 1.0, 2.0, "float64")}


def in_parts(replicator: Replicator, n: int, draws, with_collective: bool = False
             ) -> dict[str, np.ndarray]:
  """The draws of n micro-batches for the global batch in one step: name -> [ROWS, ...]."""
  def part(is_example):  # [b, ROWS], rows of the identity
    if with_collective:
      collectives.all_mean(tf.zeros([]))
    values = {name: tf.cast(x, tf.float64) for name, x in draws(is_example.shape[0]).items()}
    return {name: tf.tensordot(is_example, x, [[0], [0]]) / is_example.shape[0]
            for name, x in values.items()}
  identity = np.eye(ROWS)
  parts = replicator.run(lambda batch: microbatch(part, batch, n=n), identity)
  return {name: sum(np.asarray(replica[name]) for replica in parts) * ROWS / len(parts)
          for name in parts[0]}


def assert_first_step(drawn: dict[str, np.ndarray]) -> None:
  np.testing.assert_equal(drawn, {name: drawn_alone()[name][0] for name in drawn})


@pytest.mark.parametrize("replicas, n, with_collective, large_row", [
    (1, 4, False, 4096), (2, 2, True, 4096), (2, 2, False, 1)],
                         ids=["loop", "unrolled", "row_by_row"])
def test_micro_batches_draw_what_the_batch_does(monkeypatch, replicas, n, with_collective,
                                                large_row):
  monkeypatch.setattr(random_bits, "_LARGE_ROW", large_row)
  on = Replicator("mirrored", logical_cpus=replicas)
  assert_first_step(in_parts(on, n, two_kinds, with_collective))


def test_a_replica_makes_the_bits_of_its_own_rows_only(monkeypatch):
  made = []
  make = tf.raw_ops.StatelessRandomUniformFullIntV2
  monkeypatch.setattr(tf.raw_ops, "StatelessRandomUniformFullIntV2", lambda shape, **arguments: (
      made.append(shape[0]), make(shape=shape, **arguments))[1])
  Replicator("mirrored", logical_cpus=2).run(lambda: random.normal("z", [4, 8]))
  assert max(made) == 4 * 8


def test_the_precision_of_the_run_does_not_change_choices(set_precision):
  expected = drawn_alone()
  set_precision("float64")
  logits = tf.constant(draw(one(), lambda rows: {
      "x": random.uniform("logits", [rows, 5], -2.0, 2.0, "float32")}, steps=1)["x"][0])
  drawn = draw(one(), lambda rows: {
      "bernoulli": random.bernoulli("b", [rows, 7], 0.3),
      "categorical": random.categorical("c", logits),
      "permutation": random.permutation("p", [rows, 5])}, steps=1)
  np.testing.assert_equal({name: values[0] for name, values in drawn.items()},
                          {name: expected[name][0] for name in drawn})


def test_seeding_starts_the_streams_outside_of_steps_again_which_do_not_move_those_inside():
  first = [random.normal("z", [3]).numpy() for _ in range(2)]
  assert not np.array_equal(*first)
  random.set_seed(0)
  np.testing.assert_array_equal(random.normal("z", [3]), first[0])
  np.testing.assert_array_equal(draw(one())["normal"], drawn_alone()["normal"])


# ---- Different draws where they must differ -----------------------------------------------------


def test_no_two_draws_coincide():
  """Over seeds, names, draws within a step, steps, and examples; a collision is 2^-52."""
  def draws(rows):
    return {f"{name}{i}": random.normal(name, [rows, 1], dtype="float64")
            for name, i in itertools.product(["z", "y", "0/z"], range(2))}
  drawn = []
  for number in (0, 2 ** 40):
    random.set_seed(number)
    drawn.append(list(draw(one(), draws).values()))
  values = np.ravel(drawn)
  assert values.size == 2 * 6 * 2 * ROWS
  assert np.unique(values).size == values.size


def test_seeds_for_others_depend_on_the_run_and_the_name():
  def seeds(seed):
    random.set_seed(seed)
    return [random.seed_of(name) for name in ("actor", "evaluation")]

  assert seeds(1) == seeds(1)
  assert len({*seeds(1), *seeds(2)}) == 4
  assert all(0 <= seed < 2 ** 63 for seed in seeds(1))


# ---- The distributions --------------------------------------------------------------------------

# Of 200,000 draws; a correct generator fails with probability 1e-4, and the seed is fixed.
COUNT, SMALLEST_P = 200_000, 1e-4


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normal_has_its_distribution(dtype):
  drawn = random.normal("z", [COUNT], 2.0, 3.0, dtype)
  assert drawn.dtype == dtype
  standard = (drawn.numpy().astype(np.float64) - 2.0) / 3.0
  assert scipy.stats.kstest(standard, "norm").pvalue > SMALLEST_P
  # Moments of N(0, 1) are 0, 1, 0, 3; of their estimates the variances are 1, 2, 15, 96 over n.
  for power, (moment, variance) in enumerate([(0, 1), (1, 2), (0, 15), (3, 96)], start=1):
    assert abs(np.mean(standard ** power) - moment) < 4 * math.sqrt(variance / COUNT)
  assert 4.0 < np.abs(standard).max() < 6.5  # It has tails.


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_uniform_has_its_distribution(dtype):
  drawn = random.uniform("u", [COUNT], -1.0, 3.0, dtype)
  assert drawn.dtype == dtype
  assert -1.0 <= drawn.numpy().min() < -0.999 and 2.999 < drawn.numpy().max() < 3.0
  assert scipy.stats.kstest(drawn.numpy(), "uniform", args=(-1.0, 4.0)).pvalue > SMALLEST_P
  integers = random.uniform("label", [COUNT], -3, 7, "int32")
  assert integers.dtype == tf.int32
  values, counts = np.unique(integers, return_counts=True)
  assert list(values) == list(range(-3, 7))
  assert scipy.stats.chisquare(counts).pvalue > SMALLEST_P


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_truncated_normal_has_its_distribution(dtype):
  drawn = random.truncated_normal("t", [COUNT], 2.0, 3.0, dtype)
  assert drawn.dtype == dtype
  standard = (drawn.numpy().astype(np.float64) - 2.0) / 3.0
  assert 1.99 < np.abs(standard).max() <= 2.0 + 1e-6
  assert scipy.stats.kstest(standard, "truncnorm", args=(-2, 2)).pvalue > SMALLEST_P
  assert abs(np.std(standard) - 0.880) < 0.005


def test_bernoulli_has_its_probability_or_that_of_each_example():
  for p in (0.0, 0.01, 0.7, 1.0):
    drawn = random.bernoulli("b", [COUNT], p)
    assert drawn.dtype == tf.bool
    assert scipy.stats.binomtest(np.count_nonzero(drawn), COUNT, p).pvalue > SMALLEST_P
  p = tf.constant([[0.0], [0.5], [1.0]], tf.bfloat16)
  drawn = random.bernoulli("b", [3, 1000], p, "bfloat16")
  assert drawn.dtype == tf.bfloat16
  means = np.mean(tf.cast(drawn, tf.float32), 1)
  assert means[0] == 0 and means[2] == 1 and abs(means[1] - 0.5) < 0.07


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_categorical_has_its_distribution(dtype):
  p = np.array([0.0, 0.125, 0.0, 0.5, 0.25, 0.125, 0.0])
  with np.errstate(divide="ignore"):
    logits = tf.constant(np.log2(p) * math.log(2.0) + 3.0, dtype)
  drawn = random.categorical("c", tf.broadcast_to(logits, [COUNT // 4, 4, 7]))
  assert drawn.dtype == tf.int32 and drawn.shape == [COUNT // 4, 4]
  counts = np.bincount(np.ravel(drawn), minlength=7)
  assert not counts[p == 0].any()
  if dtype != "bfloat16":  # Which rounds the logits.
    assert scipy.stats.chisquare(counts[p > 0], COUNT * p[p > 0]).pvalue > SMALLEST_P


INF, NAN = math.inf, math.nan


def test_categorical_at_the_ends_of_its_range():
  for logits, classes in (
      ([0.0], {0}), ([-1e30], {0}), ([3e38, -3e38, 3e38], {0, 2}),
      ([-INF, -INF, -5.0, -INF], {2}), ([INF, 0.0, INF, -INF], {0, 2}), ([NAN, 0.0, 1.0], {-1}),
      ([0.0, INF, NAN], {-1}), ([-INF, -INF], {-1})):
    drawn = random.categorical("c", tf.constant([logits] * 100)).numpy()
    assert set(drawn) == classes, logits


def test_permutations_are_independent_and_equally_likely():
  drawn = random.permutation("p", [20_000, 2, 3]).numpy()
  assert drawn.dtype == np.int32
  np.testing.assert_array_equal(np.sort(drawn), np.broadcast_to(range(3), drawn.shape))
  # Two permutations of an example make 36 possible pairs.
  _, counts = np.unique(drawn.reshape(-1, 6), axis=0, return_counts=True)
  assert len(counts) == 36 and scipy.stats.chisquare(counts).pvalue > SMALLEST_P
  assert len(np.unique(random.permutation("p", [50, 1000]), axis=0)) == 50


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_below_maxval(dtype):
  drawn = tf.cast(random.uniform("u", [COUNT], dtype=dtype), tf.float64).numpy()
  assert drawn.min() >= 0.0 and drawn.max() < 1.0
  assert abs(drawn.mean() - 0.5) < 0.01
  assert random.normal("z", [2], dtype=dtype).dtype == dtype


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normal_is_finite_and_symmetric_at_its_ends(monkeypatch, dtype):
  # All bits zero and all bits one, the ends of the range of random bits.
  monkeypatch.setattr(random_bits, "bits", lambda name, shape, dtype: (
      tf.constant([0, dtype.max], dtype)))
  low, high = random.normal("z", [2], dtype=dtype).numpy()
  assert np.isfinite(low) and low < -5
  np.testing.assert_allclose(high, -low, rtol=1e-6)
  low, high = random.truncated_normal("t", [2], dtype=dtype).numpy()
  np.testing.assert_allclose([low, high], [-2, 2], rtol=1e-6)
  assert low >= -2 and high <= 2


@pytest.mark.parametrize("policy, dtype", [
    ("float32", "float32"), ("float64", "float64"), ("mixed_bfloat16", "float32")])
def test_dtypes_follow_the_run(set_precision, policy, dtype):
  set_precision(policy)
  assert random.normal("z", [2]).dtype == random.uniform("u", [2]).dtype == dtype


# ---- What is refused ----------------------------------------------------------------------------


DRAW = lambda: random.normal("z", [2])
INSIDE = [
    lambda: tf.function(DRAW, autograph=False)(),
    lambda: tf.while_loop(lambda i, _: i < 3, lambda i, _: (i + 1, DRAW()), [0, tf.zeros([2])]),
    lambda: tf.cond(replicator.step_number() < 1, DRAW, lambda: tf.zeros([2])),
]


def test_a_draw_in_a_branch_or_loop_of_the_step_or_a_compiled_function_is_refused():
  for step in INSIDE:
    with pytest.raises(UsageError, match="random stream 'z': drawn inside a "):
      Replicator("mirrored", logical_cpus=2).run(step)
  with pytest.raises(UsageError, match="draw before it and pass the tensor in"):
    INSIDE[0]()


@pytest.mark.parametrize("draw_it, message", [
    (lambda: random.normal("z", []), "'z': draws for the examples of a batch; pass a shape"),
    (lambda: random.normal("z", tf.TensorShape([None, 3])), r"'z': .*unknown shape \[None, 3\]"),
    (lambda: random.uniform("u", [2], 0, 9, "int8"), "'u': cannot draw int8; pass 'int32'"),
    (lambda: random.normal("z", [2], dtype="int32"), "'z': cannot draw int32 here"),
    (lambda: random.bernoulli("b", [2], [[0.5], [0.5]]), r"'b': p of shape \(2, 1\) does not "),
    (lambda: random.bernoulli("b", [2], 1.5), "'b': p = 1.5 is not a probability"),
    (lambda: random.bernoulli("b", [2], NAN), "'b': p = nan is not a probability"),
    (lambda: random.categorical("c", [0.0, 1.0]), r"'c': logits of shape \(2,\); pass \[n, k\]"),
    (lambda: random.categorical("c", tf.zeros([3, 0])), r"'c': logits of shape \(3, 0\)"),
    (lambda: random.permutation("p", [3]), r"'p': a permutation of shape \[3\]; pass \[n, k\]"),
])
def test_bad_input_is_refused_in_one_line(draw_it, message):
  assert re.search(message, refusal(draw_it))


@pytest.mark.parametrize("low, high", [(3, 4), (-4, -3), (-3, -4), (3, tf.constant(4.0))])
def test_no_rounding_reaches_the_upper_end(low, high):
  drawn = tf.cast(random.uniform("t", [20_000], low, high, "bfloat16"), tf.float64).numpy()
  # bfloat16 has 8 bits.
  np.testing.assert_array_equal(np.unique(np.abs(drawn - low)), np.arange(64) / 64)


def test_no_rounding_passes_the_upper_end():
  drawn = random.uniform("t", [8_000_000], 1.2, 1.3, "float32")  # 1.2 + (1.3 - 1.2) is above 1.3.
  assert float(tf.reduce_max(drawn)) < np.float32(1.3)
