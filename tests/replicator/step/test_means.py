"""The mean over what is valid, of the global batch, against NumPy in float64."""

import replicator
from replicator import GlobalBatchNorm, Replicator, UsageError, mean, microbatch, random

import keras
import numpy as np
import pytest
import tensorflow as tf

RNG = np.random.default_rng(0)
X, LENGTHS = RNG.normal(size=[16, 5, 3]), RNG.integers(0, 6, size=[16])
MASK = np.arange(5) < LENGTHS[:, None]
W = RNG.normal(size=[3])
WEIGHT = keras.Variable(1.0, dtype="float64")
pytestmark = pytest.mark.usefixtures("float64")


def expected(mask: np.ndarray) -> tuple[float, np.ndarray]:
  """The mean of `tanh(x w)^2` over a mask of `[16, 5]`, and its gradient by w."""
  y = np.tanh(X @ W)
  weights = mask / mask.sum()
  return np.sum(weights * y ** 2), np.einsum("bt,bti->i", weights * 2 * y * (1 - y ** 2), X)


def found(on: Replicator, mask_of, n: int = 1):
  """The same by a step in micro-batches; what is averaged over replicas."""
  def step(batch):
    w = tf.constant(W)

    def loss_and_gradient(part):
      with tf.GradientTape() as tape:
        tape.watch(w)
        y = tf.tanh(tf.linalg.matvec(part["x"], w))
        loss = mean(y ** 2, mask_of(part))
      return loss, tape.gradient(loss, w)
    return replicator.all_mean(microbatch(loss_and_gradient, batch, n))

  loss, gradient = on.run(step, {"x": X, "n": LENGTHS})[0]
  return float(loss), gradient.numpy()


def check(actual, wanted):
  for one, other in zip(actual, wanted, strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-15)


def by_length(part):
  return tf.sequence_mask(part["n"], 5)


@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_value_and_gradient_are_those_of_the_global_batch(n, synchronous):
  check(found(synchronous, by_length, n), expected(MASK))
  weights = lambda part: tf.cast(part["n"], tf.float64)[:, tf.newaxis]  # For all positions.
  check(found(synchronous, weights, n), expected(np.repeat(LENGTHS[:, None], 5, 1)))
  check(found(synchronous, lambda part: None, n), expected(np.ones([16, 5])))


def test_also_line_by_line(run_eagerly, two):
  run_eagerly()
  check(found(two, by_length, 4), expected(MASK))


def test_a_random_mask_is_the_same_in_micro_batches(two):
  drawn = lambda part: random.bernoulli("mask", part["n"].shape, 0.5, tf.bool)
  check(found(two, drawn, 4), found(Replicator("one_device"), drawn))


def test_several_means_and_other_terms_in_micro_batches(two):
  def step(batch):
    return replicator.all_mean(microbatch(lambda part: (
        mean(part["x"][..., 0], by_length(part)) + tf.reduce_mean(part["x"]),
        mean(part["x"][..., 1] > 0, part["n"] > 2)), batch, 2))

  one, other = two.run(step, {"x": X, "n": LENGTHS})[0]
  assert float(one) == pytest.approx(X[..., 0][MASK].mean() + X.mean(), rel=1e-12)
  assert float(other) == pytest.approx((X[LENGTHS > 2, :, 1] > 0).mean(), rel=1e-12)
  assert [call.split(" of ")[0] for call in two.calls_traced] == ["all_sum", "all_mean"]


def test_what_is_looked_at_first_changes_nothing(two):
  def moved(on):
    with on.scope():
      norm = GlobalBatchNorm()
      norm.build([None, 3])
    fn = lambda part: mean(norm(part["x"], training=True) ** 3, by_length(part))
    value = np.mean(on.run(lambda batch: microbatch(fn, batch, 2), {"x": X, "n": LENGTHS}))
    return value, norm.moving_mean.numpy()

  value, moments = moved(two)
  check((value, moments), moved(Replicator("one_device")))
  np.testing.assert_allclose(moments, 0.1 * X.mean((0, 1)), rtol=1e-12)


def test_the_mask_has_a_gradient_in_one_piece(two):
  def step(x):
    logits = tf.constant([0.5, 1.0, -1.0], tf.float64)
    with tf.GradientTape() as tape:
      tape.watch(logits)
      loss = mean(x[:, 0, :], tf.sigmoid(logits) + 0 * x[:, 0, :])
    return replicator.all_mean(tape.gradient(loss, logits))

  check(two.run(step, X)[0][None], Replicator("one_device").run(step, X)[0][None])


def test_replicas_may_have_other_numbers_of_values(two):
  kept = two.run(lambda batch: mean(tf.boolean_mask(batch["x"], by_length(batch))),
                 {"x": X, "n": LENGTHS})
  np.testing.assert_allclose(kept, [X[MASK].mean()] * 2, rtol=1e-12)


def test_what_is_not_valid_may_be_anything():
  values = tf.constant([[1.0, np.nan], [np.inf, 3.0]])
  assert float(mean(values, [[True, False], [False, True]])) == 2.0
  assert float(mean(values, tf.zeros([2, 2]))) == 0.0
  half = mean(tf.fill([5000], tf.cast(2.0, tf.float16)), tf.ones([5000], tf.bool))
  assert half.dtype == tf.float16 and float(half) == 2.0
  assert float(mean([True, False, True, True])) == 0.75


def test_what_cannot_be_right_is_refused(two):
  with pytest.raises(UsageError, match=r"mask of shape \(2,\) does not fit values .*\(3, 2\)"):
    mean(tf.zeros([3, 2]), [1.0, 0.0])
  with pytest.raises(UsageError, match=r"mask must not depend on trained variables; pass"):
    found(two, lambda part: tf.cast(part["n"], tf.float64)[:, tf.newaxis] * WEIGHT.value, 2)
  with pytest.raises(UsageError, match="mask must not depend on a collective"):
    found(two, lambda part: by_length(part) & (replicator.all_max(part["n"])[0] > 0), 2)

