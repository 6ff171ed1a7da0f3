"""The precision of the kernel distance; `test_goldens` has its numbers."""

from models.metrics.distances.kernel import kernel_distance

import numpy as np

RANDOM = np.random.default_rng(0)


def test_float32_features_are_summed_in_float64():
  real, generated = (RANDOM.normal(size=[2, 50, 4]) + 100).astype(np.float32)
  exact = kernel_distance(real.astype(np.float64), generated.astype(np.float64), 2, 50)
  assert kernel_distance(real, generated, 2, 50) == exact
