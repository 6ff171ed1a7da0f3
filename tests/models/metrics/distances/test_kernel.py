"""The kernel distance against sums over pairs, and its subsets."""

import numpy as np
import pytest

from models.metrics.distances.kernel import kernel_distance

RANDOM = np.random.default_rng(0)


def over_pairs(x, y, kernel):
  """The unbiased estimate, term by term."""
  n = len(x)
  within = [kernel(a[i], a[j]) for a in (x, y) for i in range(n) for j in range(n) if i != j]
  return sum(within) / (n * (n - 1)) - 2 * np.mean([kernel(a, b) for a in x for b in y])


def test_one_subset_of_all_samples_is_the_sum_over_pairs():
  real, generated = RANDOM.normal(size=[2, 12, 5])
  generated = generated + 0.5
  found = kernel_distance(real, generated, 1, 12)
  expected = over_pairs(real, generated, lambda a, b: (a @ b / 5 + 1) ** 3)
  assert found.mean == pytest.approx(expected, rel=1e-12) and found.std == 0


def test_float32_features_are_summed_in_float64():
  real, generated = (RANDOM.normal(size=[2, 50, 4]) + 100).astype(np.float32)
  exact = kernel_distance(real.astype(np.float64), generated.astype(np.float64), 2, 50)
  assert kernel_distance(real, generated, 2, 50) == exact
