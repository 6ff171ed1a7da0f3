"""Symmetric logarithms, and predictions of numbers by bins, against NumPy in float64."""

from models.rl.networks.two_hot import TwoHot, symexp, symlog

import numpy as np
import pytest
import tensorflow as tf

NUMBERS = np.array([-1e9, -30.0, -1.0, -1e-3, 0.0, 1e-9, 0.5, 7.0, 1e4, 1e9])


def two_hot(number: float, bins: np.ndarray) -> np.ndarray:
  """The probabilities by definition: of the two bins around a number, of which it is the mean."""
  return np.array([np.interp(number, bins, row) for row in np.eye(len(bins))])


def test_the_exponential_inverts_the_logarithm():
  np.testing.assert_allclose(symlog(NUMBERS), np.sign(NUMBERS) * np.log(1 + np.abs(NUMBERS)),
                             rtol=1e-12, atol=1e-15)
  np.testing.assert_allclose(symexp(symlog(NUMBERS)), NUMBERS, rtol=1e-12)


@pytest.mark.parametrize("limit, bins", [(20.0, 255), (2.0, 5)])
def test_losses_are_cross_entropies_with_the_two_bins_around_a_number(limit, bins, float64):
  head = TwoHot(limit, bins)
  logits = np.random.default_rng(0).normal(size=[len(NUMBERS), 1, bins])
  ends = np.linspace(-limit, limit, bins)
  places = np.sign(ends) * np.expm1(np.abs(ends))
  expected = [-two_hot(number, places) @ (row - np.log(np.exp(row).sum()))
              for number, (row,) in zip(NUMBERS, logits, strict=True)]
  found = head.losses(tf.constant(NUMBERS[:, np.newaxis]), tf.constant(logits))
  np.testing.assert_allclose(found[:, 0], expected, rtol=1e-9)
  probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  np.testing.assert_allclose(head.mean(tf.constant(logits)), probabilities @ places, rtol=1e-9)


def test_the_least_loss_predicts_the_number(float64):
  head, numbers = TwoHot(2.0, 5), np.array([-1.0, 0.0, 0.5, 6.0])
  places = np.sign(np.linspace(-2, 2, 5)) * np.expm1(np.abs(np.linspace(-2, 2, 5)))
  logits = tf.constant(np.log(np.maximum([two_hot(x, places) for x in numbers], 1e-30)))
  np.testing.assert_allclose(head.mean(logits), numbers, rtol=1e-12, atol=1e-15)
  with tf.GradientTape() as tape:
    tape.watch(logits)
    loss = tf.reduce_sum(head.losses(tf.constant(numbers), logits))
  np.testing.assert_allclose(tape.gradient(loss, logits), np.zeros([4, 5]), atol=1e-12)


def test_xla_computes_the_same(float64):
  head, logits = TwoHot(), np.random.default_rng(0).normal(size=[len(NUMBERS), 255])
  for function, arguments in ((head.losses, (NUMBERS, logits)), (head.mean, (logits,))):
    compiled = tf.function(function, autograph=False, jit_compile=True)
    given = list(map(tf.constant, arguments))
    np.testing.assert_allclose(compiled(*given), function(*given), rtol=1e-9)


def test_the_first_prediction_is_exactly_zero():
  assert TwoHot().mean(tf.zeros([3, 255])).numpy().tolist() == [0.0] * 3
