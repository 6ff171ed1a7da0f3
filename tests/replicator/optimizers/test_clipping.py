"""The mean of the gradients over the replicas is clipped, and not that of each replica."""

import numpy as np
import pytest
import tensorflow as tf

from replicator import Replicator, wrap_optimizer
from tests.replicator.optimizers.small_network import (
  BATCH,
  WEIGHTS,
  K,
  assert_close,
  clipped,
  loss_of,
  make_variables,
  numpy_gradients,
  train,
)


@pytest.mark.parametrize("clip_norm", [0.5, 1e3])
def test_the_mean_over_replicas_is_clipped(float64, synchronous, clip_norm):
  trajectory, _ = train(synchronous, lambda: K.SGD(1.0), 1, clip_norm=clip_norm)
  gradients = clipped(numpy_gradients(slice(None)), clip_norm)
  assert_close(trajectory, [[w - g for w, g in zip(WEIGHTS, gradients, strict=True)]])


def test_clipping_each_replica_first_would_be_another_update(float64):
  halves = [clipped(numpy_gradients(rows), 0.5) for rows in (slice(0, 4), slice(4, 8))]
  mean_of_clipped = [(a + b) / 2 for a, b in zip(*halves, strict=True)]
  clipped_mean = clipped(numpy_gradients(slice(None)), 0.5)
  differences = [np.abs(a - b).max() for a, b in zip(mean_of_clipped, clipped_mean, strict=True)]
  assert max(differences) > 0.01


@pytest.mark.parametrize("each", [True, False])
def test_networks_are_clipped_together_or_each_by_its_own_norm(float64, each):
  # Also that a dict is no order: networks have the order of their names.
  replicator = Replicator("mirrored", logical_cpus=2)
  with replicator.scope():
    kernel, offset, scale = make_variables()
    networks = {"mixer": [kernel, offset], "last": [scale]}
    wrapped = wrap_optimizer(K.SGD(1.0), networks, clip_norm=0.5, clip_each_network=each)

  def step(batch):
    with tf.GradientTape() as tape:
      loss = loss_of([kernel, offset, scale], batch, 0)
    wrapped.apply(tape.gradient(loss, networks), networks)
    return loss

  replicator.run(step, BATCH)
  gradients = numpy_gradients(slice(None))
  expected = ([*clipped(gradients[:2], 0.5), *clipped(gradients[2:], 0.5)] if each
              else clipped(gradients, 0.5))
  assert_close([[v.numpy() for v in (kernel, offset, scale)]],
               [[w - g for w, g in zip(WEIGHTS, expected, strict=True)]])
