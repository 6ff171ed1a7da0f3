"""Quantizers: their codes, gradients and averages are those of the formulas in NumPy."""

from models.gan.networks.quantizers import FSQ, Codebook
from replicator.step import context
from tests.models.gan.networks.plain import normal
from tests.programs.closeness import close

import numpy as np
import tensorflow as tf


def straight_through(quantizer, vectors, training=False):
  """The quantized vectors, and the gradient of the sum of squared codes by the vectors."""
  with tf.GradientTape() as tape:
    tape.watch(vectors)
    quantized = quantizer(vectors, training)
    loss = tf.reduce_sum(quantized.codes ** 2)
  return quantized, tape.gradient(loss, vectors)


def test_fsq_rounds_to_levels():
  levels = np.array([8, 5, 2])
  vectors = 3 * normal(2, 30, 30, 3)
  quantized, gradient = straight_through(FSQ(levels.tolist()), vectors)
  # The authors' formula.
  scale, offset = (levels - 1) * 0.999 / 2, np.array([0.5, 0, 0.5])
  bounded = np.tanh(vectors + np.tan(offset / scale)) * scale - offset
  codes = np.round(bounded) / [4, 2, 1]
  close(quantized.codes, codes, 1e-9)
  close(gradient, 2 * codes / [4, 2, 1] * scale * (1 - ((bounded + offset) / scale) ** 2), 1e-9)
  found = quantized.indices.numpy()
  assert [len(np.unique(codes[..., i])) for i in range(3)] == [8, 5, 2]
  digits = np.stack([found % 8, found // 8 % 5, found // 40], -1)
  np.testing.assert_array_equal(digits, np.round(bounded) + np.array([4, 2, 1]))
  close(quantized.means["usage"], np.bincount(found.ravel(), minlength=80) / 1800, 1e-9)
  assert quantized.loss == 0


def test_a_codebook_follows_the_vectors_and_restarts_dead_codes(float64):
  book = Codebook(5, 3, decay=0.9, commitment=0.5, restart_below=0.5)
  shares = np.full(5, 0.1)
  codes = book.codes.numpy()
  for step in range(3):
    vectors = normal(4, 2, 2, 3) * [1 + step, 1, 1]
    rows = vectors.numpy().reshape(16, 3)
    with context.entered(tf.constant(step, tf.int64)):
      kept = book.pool.examples.numpy()
      quantized, gradient = straight_through(book, vectors, training=True)
      book.update(quantized.means)
    nearest = ((rows[:, None] - codes) ** 2).sum(2).argmin(1)
    np.testing.assert_array_equal(quantized.indices.numpy().ravel(), nearest)
    close(quantized.codes, codes[nearest].reshape(4, 2, 2, 3), 1e-9)
    close(gradient, 2 * codes[nearest].reshape(4, 2, 2, 3), 1e-9)
    close(quantized.loss, 0.5 * ((rows - codes[nearest]) ** 2).mean(), 1e-9)
    is_nearest = nearest[:, None] == range(5)
    sums = 0.9 * shares[:, None] * codes + 0.1 * is_nearest.T @ rows / 16
    shares = 0.9 * shares + 0.1 * is_nearest.mean(0)
    codes = sums / shares[:, None]
    is_dead = (shares < 0.1) & (np.arange(5) < 4 * step)  # Each step puts 4 into the pool.
    codes[is_dead], shares[is_dead] = kept[is_dead], 0.1
    assert is_dead.any() == (step > 0)
    close(book.codes, codes, 1e-9)
    close(book.shares, shares, 1e-9)
  # A vector of each example is in the pool.
  for example, vector in zip(rows.reshape(4, 4, 3), book.pool.examples.numpy()[[3, 4, 0, 1]],
                             strict=True):
    assert (example == vector).all(1).any()
