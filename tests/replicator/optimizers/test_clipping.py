"""The mean of the gradients over the replicas is clipped, and not that of each replica."""

import numpy as np
import pytest

from tests.replicator.optimizers.small_network import (
  WEIGHTS,
  K,
  assert_close,
  clipped,
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
