"""Features for `benchmarks.metric_parity` and for the tests that check its numbers.

They come from NumPy's legacy generator, whose stream will not change.
"""

from typing import NamedTuple

import numpy as np


class MetricCase(NamedTuple):
  """Features of two sets, and settings of the metrics.

  Attributes:
    real: float32 [n, d].
    generated: float32 [m, d]; the Inception score takes them as logits.
    subset_size: KID's subset size.
    splits: the Inception score's splits.
  """

  real: np.ndarray
  generated: np.ndarray
  subset_size: int
  splits: int


def metric_cases() -> dict[str, MetricCase]:
  """Returns the cases by name."""
  random = np.random.RandomState(1)
  mixing = random.randn(48, 48) / 7
  normal = random.randn(600, 48) @ mixing
  other = (0.9 * random.randn(500, 48) + 0.1) @ mixing
  new = random.randn(200, 48) @ mixing
  cases = {
      "normal": (normal, other, 200, 10),
      # Positive and far from the origin, as activations are: squares cancel.
      "positive": (np.maximum(normal, 0) + 3, np.maximum(other, 0) + 3, 200, 10),
      "fewer samples than dimensions": (
          random.randn(70, 160), 1.1 * random.randn(60, 160) + 0.1, 50, 4),
      # Few values, so that many samples are equal, and many distances, all exact in float32.
      "ties": (random.randint(0, 3, [400, 5]), random.randint(0, 3, [300, 5]), 100, 10),
      "collapsed": (random.randint(0, 3, [400, 5]), np.tile([[0, 1, 1, 2, 0]], [300, 1]), 100, 10),
      # A generator that memorized some samples.
      "copies": (normal, np.concatenate([normal[:300], new]), 200, 10),
  }
  return {name: MetricCase(real.astype(np.float32), generated.astype(np.float32), *settings)
          for name, (real, generated, *settings) in cases.items()}
