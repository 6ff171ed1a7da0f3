"""Self-attention; the tests of BigGAN compare it with NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from models.gan.networks.attention import SelfAttention, with_attention


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_it_is_the_identity_at_first_and_the_gain_learns(policy):
  keras.config.set_dtype_policy(policy)
  layer = SelfAttention()
  layer.build((None, 4, 4, 8))
  dtype = layer.compute_dtype
  keras.config.set_dtype_policy("float32")
  x = tf.constant(np.random.default_rng(0).normal(size=[2, 4, 4, 8]), dtype)
  with tf.GradientTape() as tape:
    y = layer(x)
    loss = tf.reduce_sum(tf.cast(y, tf.float32) ** 2)
  np.testing.assert_array_equal(y, x)
  assert y.dtype == dtype
  assert abs(tape.gradient(loss, layer.gain.value)) > 1e-3


def test_answers_come_from_everywhere():
  layer = SelfAttention()
  layer.build((None, 8, 8, 8))
  layer.gain.assign(1.0)
  x = tf.constant(np.random.default_rng(0).normal(size=[1, 8, 8, 8]), tf.float32)
  with tf.GradientTape() as tape:
    tape.watch(x)
    corner = tf.reduce_sum(layer(x)[:, 0, 0])
  reached = np.abs(tape.gradient(corner, x)).max(-1)[0] > 0
  # Each block of 2x2 pixels gives a key, whichever of its pixels is the largest.
  assert reached.reshape(4, 2, 4, 2).any((1, 3)).all()


@pytest.mark.parametrize("attention, sizes, last, place", [
    (None, [32, 64, 128], False, 2), (None, [16, 8, 4, 4], False, None), (0, [64], False, None),
    (4, [16, 8, 4, 4], False, 3), (4, [16, 8, 4, 4], True, 4)])
def test_places(attention, sizes, last, place):
  found = with_attention("D", attention, list(sizes), sizes, last)
  assert [i for i, each in enumerate(found) if isinstance(each, SelfAttention)] == (
      [] if place is None else [place])
  assert [each for each in found if not isinstance(each, SelfAttention)] == sizes
