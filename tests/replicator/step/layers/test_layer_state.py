"""Layers that are frozen, inside a `keras.StatelessScope`, or under the mixed precisions."""

from replicator import GlobalBatchNorm, SpectralNorm, recompute_grad, wrap_optimizer
from tests.programs.closeness import close

import keras
import numpy as np
import pytest
import tensorflow as tf

X = np.random.default_rng(0).normal(size=[8, 5])


@pytest.mark.parametrize("make, mapped", [
    (GlobalBatchNorm, True), (GlobalBatchNorm, False),
    (lambda: SpectralNorm(keras.layers.Dense(3)), True)], ids=["mapped", "batch", "spectral"])
def test_a_scope_keeps_what_a_layer_would_assign(float64, make, mapped):
  layer = make()
  layer.build(X.shape)
  before = [v.numpy() for v in layer.variables]
  values = [(v, v.value) for v in layer.non_trainable_variables] if mapped else []
  with keras.StatelessScope(values, initialize_variables=False) as scope:
    outputs = layer(X, training=True)
    for _ in range(2):
      layer(X, training=True)
  np.testing.assert_equal([v.numpy() for v in layer.variables], before)
  kept = [scope.get_current_value(v) for v in layer.non_trainable_variables]
  np.testing.assert_array_equal(layer(X, training=True), outputs)
  for _ in range(2):
    layer(X, training=True)
  np.testing.assert_equal([v.numpy() for v in layer.non_trainable_variables],
                          [value.numpy() for value in kept])


def test_averaged_weights_keep_what_an_enclosing_scope_replaces(float64):
  network = keras.Sequential([keras.Input([5]), keras.layers.Dense(3), GlobalBatchNorm()])
  dense, norm = network.layers
  optimizer = wrap_optimizer(keras.optimizers.SGD(), [dense.kernel], ema_decay=0.5)
  average, statistics = 2 * dense.kernel.numpy(), norm.moving_mean.numpy()
  optimizer.averages[0].assign(average)
  bias = np.arange(3.0)
  replaced = [(dense.bias, tf.constant(bias))]
  with keras.StatelessScope(replaced, initialize_variables=False), optimizer.averaged_weights():
    np.testing.assert_allclose(dense(X), X @ average + bias, rtol=1e-12)
  with optimizer.averaged_weights():
    network(X, training=True)  # Nothing is overwritten.
  np.testing.assert_array_equal(norm.moving_mean, statistics)


class Compiled(keras.layers.Dense):
  """A layer whose `call` is compiled."""

  @tf.function
  def call(self, inputs):
    return super().call(inputs)


@pytest.mark.parametrize("wrap", [SpectralNorm, recompute_grad])
def test_a_layer_that_is_compiled_uses_replaced_values(float64, one_or_two, wrap):
  found = []
  for kind in (keras.layers.Dense, Compiled):
    with one_or_two.scope():
      layer = kind(3)
      layer.build(X.shape)
      wrapped = wrap(layer)
      if isinstance(wrapped, keras.Layer):
        wrapped.build(X.shape)
        wrapped.u.assign(tf.ones_like(wrapped.u))
    layer.kernel.assign(np.arange(15.0).reshape(5, 3))
    layer(X)  # Compiled before.

    def step(x, layer=layer, wrapped=wrapped):
      with tf.GradientTape() as tape:
        y = wrapped(x)
        loss = tf.reduce_mean(y ** 2)
      return y, tape.gradient(loss, layer.kernel.value)

    found.append(one_or_two.run(step, X) + one_or_two.run(step, X[:4]))
  tf.nest.map_structure(np.testing.assert_allclose, *found)


@pytest.mark.parametrize("make", [GlobalBatchNorm, lambda: SpectralNorm(keras.layers.Dense(2))])
def test_a_frozen_layer_computes_as_when_it_is_not_training(make):
  x = tf.constant(np.random.default_rng(0).normal(2.0, 3.0, [16, 3]), tf.float32)
  layer = make()
  layer(x, training=True)
  before = [v.numpy() for v in layer.variables]
  layer.trainable = False
  np.testing.assert_array_equal(layer(x, training=True), layer(x, training=False))
  np.testing.assert_equal([v.numpy() for v in layer.variables], before)
  layer.trainable = True
  layer(x, training=True)
  assert any((value != variable.numpy()).any()
             for value, variable in zip(before, layer.variables, strict=True))


RNG = np.random.default_rng(0)

MIXED = {
    "GlobalBatchNorm": lambda: GlobalBatchNorm(),
    "SpectralNorm of Conv2D": lambda: SpectralNorm(keras.layers.Conv2D(3, 3, padding="same")),
}


@pytest.mark.parametrize("kind", MIXED)
def test_mixed_bfloat16_keeps_statistics_in_float32(two, set_precision, kind):
  # Numbers that bfloat16 represents exactly, because a model rounds its inputs.
  x = RNG.integers(-16, 24, [4, 5, 5, 3]).astype(np.float32) / 8
  outputs = {}
  for precision in ("float32", "mixed_bfloat16"):
    set_precision(precision)
    keras.utils.set_random_seed(0)
    with two.scope():
      network = keras.Sequential([MIXED[kind]()])
      network.build([None, *x.shape[1:]])

    def step(x, network=network):
      with tf.GradientTape() as tape:
        y = network(x, training=True)
        loss = tf.reduce_mean(tf.cast(y, tf.float32) ** 3)
      return y, tape.gradient(loss, [v.value for v in network.trainable_variables])

    (y, gradients), _ = two.run(step, x)
    assert y.dtype == ("float32" if precision == "float32" else "bfloat16")
    assert {g.dtype for g in gradients} == {tf.float32}
    assert {v.dtype for v in network.variables} == {"float32"}
    outputs[precision] = [tf.cast(value, tf.float32).numpy()
                          for value in (y, *gradients, *network.non_trainable_variables)]
  for value, expected in zip(outputs["mixed_bfloat16"], outputs["float32"], strict=True):
    close(value, expected, 0.05)  # bfloat16 has 8 bits.
  # The moving variance or the singular vector, computed before anything is rounded.
  close(outputs["mixed_bfloat16"][-1], outputs["float32"][-1], 1e-6)
