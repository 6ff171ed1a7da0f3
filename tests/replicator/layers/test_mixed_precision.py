"""Layers under the mixed precisions keep their statistics in float32."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from replicator import GlobalBatchNorm, Replicator, SpectralNorm
from tests.programs.closeness import close

RNG = np.random.default_rng(0)

MIXED = {
    "GlobalBatchNorm": lambda: GlobalBatchNorm(),
    "SpectralNorm of Conv2D": lambda: SpectralNorm(keras.layers.Conv2D(3, 3, padding="same")),
}


@pytest.mark.parametrize("kind", MIXED)
def test_mixed_bfloat16_keeps_statistics_in_float32(set_precision, kind):
  replicator = Replicator("mirrored", logical_cpus=2)
  # Numbers that bfloat16 represents exactly, because a model rounds its inputs.
  x = RNG.integers(-16, 24, [4, 5, 5, 3]).astype(np.float32) / 8
  outputs = {}
  for precision in ("float32", "mixed_bfloat16"):
    set_precision(precision)
    keras.utils.set_random_seed(0)
    with replicator.scope():
      network = keras.Sequential([MIXED[kind]()])
      network.build([None, *x.shape[1:]])

    def step(x, network=network):
      with tf.GradientTape() as tape:
        y = network(x, training=True)
        loss = tf.reduce_mean(tf.cast(y, tf.float32) ** 3)
      return y, tape.gradient(loss, [v.value for v in network.trainable_variables])

    (y, gradients), _ = replicator.run(step, x)
    assert y.dtype == ("float32" if precision == "float32" else "bfloat16")
    assert {g.dtype for g in gradients} == {tf.float32}
    assert {v.dtype for v in network.variables} == {"float32"}
    outputs[precision] = [tf.cast(value, tf.float32).numpy()
                          for value in (y, *gradients, *network.non_trainable_variables)]
  for value, expected in zip(outputs["mixed_bfloat16"], outputs["float32"], strict=True):
    close(value, expected, 0.05)  # bfloat16 has 8 bits.
  # The moving variance or the singular vector, computed before anything is rounded.
  close(outputs["mixed_bfloat16"][-1], outputs["float32"][-1], 1e-6)
