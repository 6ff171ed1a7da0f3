"""The metrics of `models.metrics` during a training: FID, KID, precision, recall and others."""

import os
from collections.abc import Callable, Iterator, Sequence

import gin
import numpy as np

from models.metrics import efficientnet, inception  # noqa: F401  (for gin)
from models.metrics.adaptors import SmallClassifier
from models.metrics.extractor import Extractor
from models.metrics.image_sets import Source, rgb
from models.vision.images import ImageSource, to_uint8

_SEED = 1
_AT_A_TIME = 250


@gin.configurable(denylist=["source", "folder"])
class FeatureMetrics:
  """Measures generated images against the real ones of a source, by features of any extractor.

  Samples are made and forgotten in batches. The memory is that of the statistics, and for `kid` and
  `prdc` that of the features.

  Attributes:
    num_samples: number of real images and of generated ones in each measurement.
    description: one line that says how the numbers are computed.
  """

  def __init__(self, source: ImageSource, folder: str | os.PathLike,
               extractor: Callable[[], Extractor] | None = None,
               metrics: Sequence[str] = ("fid", "prdc"), num_samples: int = 2_000) -> None:
    """Loads the extractor.

    Args:
      source: real images.
      folder: where features of real images are kept, and the small classifier; each run has its
        own.
      extractor: makes it, such as `@EfficientNetLite0`, `@Inception2015` or `@KerasFeatures`; by
        default a small classifier, which is trained on the source.
      metrics: some of `fid`, `kid`, `prdc`, `is` and `swd`.
      num_samples: how many real and generated images to compare, at most `source.size`. Published
        numbers have 10,000 or 50,000.

    Raises:
      UsageError: there is no such metric, or there are too few images for it.
    """
    from models.metrics import cache, comparison  # SciPy: every experiment would start later.
    self._needed = comparison.needs(metrics)
    self._metrics = list(metrics)
    self.num_samples = min(num_samples, source.size)
    comparison.check_counts(metrics, self.num_samples, self.num_samples)
    self._extractor = extractor() if extractor else SmallClassifier(source, folder)
    chosen = np.random.default_rng(_SEED).permutation(source.size)[:self.num_samples]
    self._real, _ = cache.gather_real(Source("data", source), np.sort(chosen), self._extractor,
                                      self._needed, folder)
    self.description = (
        f"{self.num_samples:,} real and {self.num_samples:,} generated images; features: "
        f"{self._extractor.name}; resizing: {self._extractor.resizing}"
        + ("" if self._extractor.is_inception else " (not Inception)"))

  def measure(self, generate: Callable[[int, slice], np.ndarray],
              num_classes: int = 0) -> dict[str, float]:
    """Draws `num_samples` images and compares them with the real ones.

    Args:
      generate: n and a slice of `range(n)` -> these images [m, h, w, c], floats in [-1, 1] of any
        precision. They are rounded to 8 bits, the precision of the real ones.
      num_classes: not used.

    Returns:
      The numbers by the names that they have in these features: `fid`, `kid` and `inception_score`
      in those of Inception, and `frechet_distance`, `kernel_distance` and `score_of_classes` in
      others; `precision`, `recall`, `density`, `coverage`, `sliced_wasserstein_distance`. NaN when
      an image is not finite.
    """
    from models.metrics import comparison
    names = [name.lower().replace("é", "e").replace(" ", "_") for metric in self._metrics
             for name in comparison.names(metric, self._extractor.is_inception)]
    try:
      generated = comparison.gather(self._batches(generate), self._extractor, self._needed)
    except FloatingPointError:
      return dict.fromkeys(names, np.nan)
    rows = comparison.compare(self._real, generated, self._extractor, self._metrics)
    return dict(zip(names, [row.value for row in rows], strict=True))

  def _batches(self, generate: Callable[[int, slice], np.ndarray]) -> Iterator[np.ndarray]:
    """RGB images, uint8 [n, h, w, 3]; raises a FloatingPointError if one is not finite."""
    for i in range(0, self.num_samples, _AT_A_TIME):
      images = np.asarray(generate(self.num_samples, slice(i, i + _AT_A_TIME)))
      if not np.isfinite(np.asarray(images, np.float64)).all():
        raise FloatingPointError
      yield rgb(to_uint8(images).numpy())
