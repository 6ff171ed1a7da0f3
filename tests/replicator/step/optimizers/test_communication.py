"""Gradients that travel in buckets, and in half precision."""

from replicator import Replicator, replica_id, wrap_optimizer
from replicator.step.hooks import Hook, Transfer
from replicator.strategies.compiled_step import CompiledStep
from tests.programs.closeness import nests_close
from tests.programs.refusals import refusal
from tests.replicator.step.optimizers import small_network as small
from tests.replicator.step.optimizers.small_network import K

import keras
import numpy as np
import pytest
import tensorflow as tf

BYTE = 2.0 ** -20  # In megabytes.
OPTIMIZERS = {**small.OPTIMIZERS, "Lamb": lambda: K.Lamb(0.1)}  # Lamb takes one variable at a time.


def mirrored(replicas: int) -> Replicator:
  return Replicator("mirrored", logical_cpus=replicas)


class Sent(Hook):
  """Records what the first replica sends."""

  def __init__(self):
    self.transfers: list[Transfer] = []

  def transferred(self, transfer):
    if tf.get_static_value(replica_id()) == 0:
      self.transfers.append(transfer)


def sent(sizes: list[int], gradients: list[float | None] | None = None, **options
         ) -> list[tuple[str, int]]:
  """The move and the size in bytes of each transfer of an update of vectors of these sizes."""
  replicator, hook = mirrored(2), Sent()
  with replicator.scope():
    variables = [keras.Variable(tf.zeros([size])) for size in sizes]
    optimizer = wrap_optimizer(K.SGD(1.0), variables, **options)

  def step():
    factors = gradients or [1.0] * len(variables)
    optimizer.apply([None if factor is None else factor * tf.ones_like(v.value)
                     for factor, v in zip(factors, variables, strict=True)])
    return tf.constant(0)

  CompiledStep(replicator, step, hooks=[hook])(0)
  return [(each.move, each.bytes) for each in hook.transfers]


# ---- Buckets ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bucket_mb", [BYTE, 24 * BYTE, 1.0])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_buckets_do_not_change_the_training(float64, name, bucket_mb):
  options = {"clip_norm": 0.5, "ema_decay": 0.75}
  expected, _ = small.train(Replicator("one_device"), OPTIMIZERS[name], 3, **options)
  actual, _ = small.train(mirrored(2), OPTIMIZERS[name], 3, bucket_mb=bucket_mb, **options)
  nests_close(actual, expected, 1e-13)


@pytest.mark.parametrize("replicas", [2, 4])
def test_buckets_go_with_sharded_state(float64, replicas):
  make = small.OPTIMIZERS["AdamW"]
  options = {"clip_norm": 0.5, "ema_decay": 0.75, "every": 2}
  expected, _ = small.train(Replicator("one_device"), make, 4, **options)
  for bucket_mb in (BYTE, 40 * BYTE):
    actual, _ = small.train(mirrored(replicas), make, 4, sharded=True, bucket_mb=bucket_mb,
                            **options)
    nests_close(actual, expected, 1e-13)


def test_the_same_size_gives_the_same_bits():
  runs = [small.train(mirrored(2), small.OPTIMIZERS["Adam"], 3, bucket_mb=8 * BYTE)[0]
          for _ in range(2)]
  for first, second in zip(*runs, strict=True):
    for x, y in zip(first, second, strict=True):
      np.testing.assert_array_equal(x, y)


def test_the_last_variables_are_sent_first_in_buckets_of_at_least_this_size():
  # The end of the vector is padding, up to a multiple of 768 numbers.
  assert sent([512, 128, 256, 100], bucket_mb=1024 * BYTE) == [
      ("all_reduce", 4 * (540 + 100)), ("all_reduce", 4 * 256), ("all_reduce", 4 * (128 + 512))]
  assert sent([512, 256]) == [("all_reduce", 4 * 768)]
  assert sent([512, 256], bucket_mb=1.0) == [("all_reduce", 4 * 768)]
  assert sent([512, 256], [None, 1.0], bucket_mb=BYTE) == [
      ("all_reduce", 4 * 256), ("all_reduce", 4 * 512)]


def test_sharded_gradients_are_scattered_in_buckets():
  moves = sent([512, 256], bucket_mb=BYTE, sharded=True)
  assert moves[:2] == [("reduce_scatter", 4 * 256), ("reduce_scatter", 4 * 512)]


# ---- Half precision -----------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"bucket_mb": BYTE}, {"sharded": True}])
def test_bfloat16_sends_half_the_bytes(options):
  whole = sent([512, 256], **options)
  half = sent([512, 256], communication_dtype="bfloat16", **options)
  gradients = [i for i, (move, size) in enumerate(whole) if size > 4 and move != "all_gather"]
  assert gradients
  for i, ((move, size), (of_half, half_size)) in enumerate(zip(whole, half, strict=True)):
    assert move == of_half
    assert half_size == (size // 2 if i in gradients else size)  # Weights and norms stay exact.


@pytest.mark.parametrize("options", [{}, {"bucket_mb": BYTE}, {"sharded": True}])
@pytest.mark.parametrize("replicas", [2, 3])
def test_bfloat16_gradients_are_rounded_once_by_each_replica_and_once_by_each_sum(
    replicas, options):
  rng = np.random.default_rng(0)
  gradients = rng.normal(size=[replicas, 5]).astype(np.float32)
  replicator = mirrored(replicas)
  with replicator.scope():
    variables = [keras.Variable(tf.zeros([3])), keras.Variable(tf.zeros([2]))]
    optimizer = wrap_optimizer(K.SGD(1.0), variables, communication_dtype="bfloat16", **options)

  def step(x):
    optimizer.apply([x[0, :3], x[0, 3:]])
    return tf.constant(0)

  replicator.run(step, gradients)
  rounded = lambda x: tf.cast(tf.cast(x, tf.bfloat16), tf.float32).numpy()
  mean = rounded(gradients[0] / replicas)
  for gradient in gradients[1:]:
    mean = rounded(mean + rounded(gradient / replicas))
  actual = -np.concatenate([v.numpy() for v in variables])
  # 2^-8 is the spacing of bfloat16; three numbers may be added up in another order.
  np.testing.assert_allclose(actual, mean, rtol=0 if replicas == 2 else 2.0 ** -7, atol=1e-7)
  exact = gradients.mean(0)
  bound = 2.0 ** -9 * np.abs(gradients / replicas).sum(0) + (replicas - 1) * 2.0 ** -8 * np.abs(
      gradients / replicas).sum(0)
  assert np.all(np.abs(actual - exact) <= bound)
  assert not np.array_equal(actual, exact)


def test_float64_gradients_stay_exact(float64):
  make = small.OPTIMIZERS["Adam"]
  expected, _ = small.train(Replicator("one_device"), make, 2)
  actual, _ = small.train(mirrored(2), make, 2, communication_dtype="bfloat16")
  nests_close(actual, expected, 1e-13)


def test_one_replica_rounds_nothing():
  runs = [small.train(Replicator("one_device"), small.OPTIMIZERS["Adam"], 2, **options)[0]
          for options in ({}, {"communication_dtype": "bfloat16", "bucket_mb": BYTE})]
  for first, second in zip(*runs, strict=True):
    for x, y in zip(first, second, strict=True):
      np.testing.assert_array_equal(x, y)


def test_settings_that_mean_nothing_are_refused():
  variables = small.make_variables()
  for options, said in (
      ({"bucket_mb": 0}, "wrap_optimizer.bucket_mb = 0: must be above 0"),
      ({"communication_dtype": "float16"},
       "wrap_optimizer.communication_dtype = 'float16': use 'bfloat16', or None")):
    assert refusal(wrap_optimizer, K.SGD(1.0), variables, **options).startswith(said)
