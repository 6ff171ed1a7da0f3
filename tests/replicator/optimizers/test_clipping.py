"""The mean of the gradients over the replicas is clipped, and not that of each replica."""

import pytest

from replicator import Replicator
from tests.replicator.optimizers.small_network import (
  WEIGHTS,
  K,
  assert_close,
  clipped,
  numpy_gradients,
  train,
)


@pytest.mark.parametrize("clip_norm", [0.5, 1e3])
def test_the_mean_over_replicas_is_clipped(float64, clip_norm):
  replicator = Replicator("mirrored", logical_cpus=2)
  trajectory, _ = train(replicator, lambda: K.SGD(1.0), 1, clip_norm=clip_norm)
  gradients = clipped(numpy_gradients(slice(None)), clip_norm)
  assert_close(trajectory, [[w - g for w, g in zip(WEIGHTS, gradients, strict=True)]])
