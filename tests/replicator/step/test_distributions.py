"""The draws have their distributions, and what cannot be drawn is refused."""

import math
import re

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

import replicator
from replicator import Replicator, random
from replicator.errors import UsageError
from replicator.step import random_bits
from tests.programs.refusals import refusal

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


BAD_DRAWS = [
    (lambda: random.normal("z", []), "'z': draws for the examples of a batch; write a shape"),
    (lambda: random.normal("z", tf.TensorShape([None, 3])), r"'z': .*unknown shape \[None, 3\]"),
    (lambda: random.uniform("u", [2], 0, 9, "int8"), "'u': does not draw int8; write 'int32'"),
    (lambda: random.normal("z", [2], dtype="int32"), "'z': does not draw int32 here"),
    (lambda: random.bernoulli("b", [2], [[0.5], [0.5]]), r"'b': p of shape \(2, 1\) does not "),
    (lambda: random.bernoulli("b", [2], 1.5), "'b': p = 1.5 is not a probability"),
    (lambda: random.bernoulli("b", [2], NAN), "'b': p = nan is not a probability"),
    (lambda: random.categorical("c", [0.0, 1.0]), r"'c': logits of shape \(2,\); write \[n, k\]"),
    (lambda: random.categorical("c", tf.zeros([3, 0])), r"'c': logits of shape \(3, 0\)"),
    (lambda: random.permutation("p", [3]), r"'p': a permutation of shape \[3\]; write \[n, k\]"),
]


def test_bad_input_is_refused_in_one_line():
  for draw_it, message in BAD_DRAWS:
    assert re.search(message, refusal(draw_it))
