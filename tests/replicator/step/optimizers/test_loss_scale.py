"""Loss scaling in float16: when the scale moves, and small gradients that it saves."""

from replicator import Replicator, microbatch, wrap_optimizer
from replicator.errors import UsageError
from replicator.step.optimizers.loss_scale import LossScale
from replicator.step.variables import variables_of
from replicator.strategies.compiled_step import CompiledStep
from tests.replicator.step.optimizers.small_network import K, make_variables

import keras
import numpy as np
import pytest
import tensorflow as tf


def test_the_scale_follows_the_gradients():
  # Up after 2,000 updates in a row, down at one that is not finite; from 1 to 2^24.
  def after(finite: bool, factor: float, finite_updates: int) -> tuple[float, int]:
    scale.factor.assign(factor)
    scale.finite_updates.assign(finite_updates)
    scale.adapt(tf.constant(finite))
    return float(scale.factor.numpy()), int(scale.finite_updates.numpy())

  scale = LossScale()
  assert (scale.factor.numpy(), scale.finite_updates.numpy()) == (2.0 ** 15, 0)
  assert after(True, 2.0 ** 15, 0) == (2.0 ** 15, 1)
  assert after(True, 2.0 ** 15, 1998) == (2.0 ** 15, 1999)
  assert after(True, 2.0 ** 15, 1999) == (2.0 ** 16, 0)
  assert after(False, 2.0 ** 15, 1999) == (2.0 ** 14, 0)
  assert after(False, 1.0, 5) == (1.0, 0)
  assert after(True, 2.0 ** 24, 1999) == (2.0 ** 24, 0)


@pytest.fixture
def mixed_float16(set_precision):
  set_precision("mixed_float16")


@pytest.mark.parametrize("strategy, devices, xla", [
    ("central_storage", 2, False), ("one_device", None, True)])
def test_float16_layers_train_with_small_gradients_and_after_large_ones(
    mixed_float16, strategy, devices, xla):
  # dloss/dw = mean(x) passes through float16, where 1e-8 is zero. A batch whose scaled gradient is
  # infinite there is skipped and halves the scale. In 2 micro-batches of each replica.
  replicator = Replicator(strategy, logical_cpus=devices, jit_compile=xla)
  with replicator.scope():
    weight = keras.Variable([1.0], dtype="float32")
    wrapped = wrap_optimizer(K.SGD(1.0), [weight])

  def loss_of(x):
    return tf.reduce_mean(tf.cast(tf.cast(weight.value, tf.float16), tf.float32) * x)

  def step(x):
    loss, gradients = microbatch(lambda part: wrapped.loss_and_gradients(loss_of, part), x, n=2)
    wrapped.apply(gradients)
    return {"loss": loss, "weight": weight.value[0], "scale": wrapped.loss_scale.factor}

  means = np.array([1e-8, 3.0, 1e-8, 1.0])
  x = np.stack([m * np.array([0.5, 1.5, 1.0, 1.0]) for m in means]).astype(np.float32)
  logged, _ = CompiledStep(replicator, step, 4, logs=True)(0, x).fetch()
  np.testing.assert_array_equal(logged["scale"], np.float32([2, 1, 1, 1]) * 2.0 ** 14)
  np.testing.assert_allclose(logged["weight"], 1 - np.cumsum([1e-8, 0, 1e-8, 1.0]), rtol=1e-3,
                             atol=1e-7)
  np.testing.assert_allclose(logged["loss"], means * [1, *logged["weight"][:3]], rtol=2e-3)
  assert wrapped.nonfinite_updates.numpy() == 1
  weight.assign([0.0])  # Near zero there is room for a small update.
  CompiledStep(replicator, step, 1, logs=True)(4, x[0]).fetch()
  np.testing.assert_allclose(weight.numpy(), -1e-8, rtol=1e-3)


@pytest.mark.parametrize("layer, slope, x, skipped", [
    ("float16", 4.0, [1, -1, 1, -1], 0),  # Each part of 1 example would pass 4 x 2^15 through it.
    ("float16", 3.0, [1, 1, 1, 1], 1),    # No part has 2^16, but their sum does.
    ("float32", 3.0, [1, 1, 1, 1], 1),    # It could hold 2^16, but is treated as float16.
])
@pytest.mark.parametrize("devices, parts", [(1, 1), (2, 2)])
def test_replicas_and_micro_batches_skip_what_one_piece_skips(
    mixed_float16, devices, parts, layer, slope, x, skipped):
  replicator = Replicator("mirrored", logical_cpus=devices)
  with replicator.scope():
    weight = keras.Variable([1.0], dtype="float32")
    wrapped = wrap_optimizer(K.SGD(1.0), [weight])

  def step(x):
    _, gradients = microbatch(lambda part: wrapped.loss_and_gradients(lambda part: slope * (
        tf.reduce_mean(tf.cast(tf.cast(weight.value, layer) * part, tf.float32))), part), x,
                              n=parts)
    wrapped.apply(gradients)
    return tf.constant(0)

  replicator.run(step, np.array(x, layer))
  assert wrapped.nonfinite_updates.numpy() == skipped
  np.testing.assert_array_equal(weight.numpy(), [1.0])  # Skipped, or a mean of 0.


def test_a_loss_that_float16_could_not_hold_is_scaled_in_float32(mixed_float16):
  wrapped = wrap_optimizer(K.SGD(1.0), make_variables())
  assert {"loss_scale/factor", "loss_scale/finite_updates", "nonfinite_updates"} <= set(
      variables_of(wrapped))  # What is saved.
  scaled = wrapped.scale_loss(tf.constant(3.0, tf.float16))
  assert scaled.dtype == tf.float32
  assert float(scaled) == 3 * 2.0 ** 15


def test_float16_gradients_of_an_unscaled_loss_are_refused(two, mixed_float16):
  with two.scope():
    variables = make_variables()
    wrapped = wrap_optimizer(K.SGD(1.0, name="the_sgd"), variables)
  refusal = r"the_sgd.apply: .*'mixed_float16'.* compute.* optimizer.scale_loss\(loss\)"

  def step(losses_scaled):
    for _ in range(losses_scaled):
      wrapped.scale_loss(tf.constant(1.0))
    for _ in range(2):
      wrapped.apply([tf.zeros_like(v.value) for v in variables])
    return tf.constant(0)

  for losses_scaled in (0, 2):  # Each update needs its own: the scale changes with it.
    with pytest.raises(UsageError, match=refusal):
      two.run(lambda n=losses_scaled: step(n))


@pytest.mark.parametrize("precision", ["float32", "float64", "mixed_bfloat16"])
def test_other_precisions_scale_nothing(set_precision, precision):
  set_precision(precision)
  wrapped = wrap_optimizer(K.SGD(1.0), make_variables())
  loss = tf.constant(1.0)
  assert wrapped.scale_loss(loss) is loss
  assert wrapped.loss_scale is None
