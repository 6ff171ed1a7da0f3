"""Self-attention; the tests of BigGAN compare it with NumPy."""

from models.gan.networks.attention import SelfAttention, with_attention

import keras
import numpy as np
import pytest
import tensorflow as tf


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


@pytest.mark.parametrize("attention, sizes, last, place", [
    (None, [32, 64, 128], False, 2), (None, [16, 8, 4, 4], False, None), (0, [64], False, None),
    (4, [16, 8, 4, 4], False, 3), (4, [16, 8, 4, 4], True, 4)])
def test_places(attention, sizes, last, place):
  found = with_attention("D", attention, list(sizes), sizes, last)
  assert [i for i, each in enumerate(found) if isinstance(each, SelfAttention)] == (
      [] if place is None else [place])
  assert [each for each in found if not isinstance(each, SelfAttention)] == sizes
