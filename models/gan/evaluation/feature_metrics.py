"""The metrics of `models.metrics` during training: FID, KID, precision, recall and others."""

import os
import re
from collections.abc import Callable, Iterator, Sequence

from models.metrics.extractors import efficientnet, inception  # noqa: F401  (for gin)
from models.metrics.extractors.extractor import Extracted, Extractor
from models.metrics.extractors.keras_features import SmallClassifier
from models.metrics.images.image_sets import Source, rgb
from models.vision.images.classes import NO_CLASSES, Classes, unique
from models.vision.images.image_source import ImageSource, labels_of, to_uint8
from replicator import UsageError
from replicator.strategies import distributed_evaluation

import gin
import numpy as np

_SEED = 1
_AT_A_TIME = 250


@gin.configurable(denylist=["source", "folder"])
class FeatureMetrics:
  """Metrics that compare generated images with a source's real ones, by any extractor's features.

  Samples are generated and discarded in batches, which are distributed over all replicas of all
  workers. The results do not depend on the number of replicas. Memory holds only the statistics,
  and for `kid` and `prdc` the features.
  """

  on_all_workers = True

  def __init__(self, source: ImageSource, folder: str | os.PathLike,
               extractor: Callable[[], Extractor] | None = None,
               metrics: Sequence[str] = ("fid", "prdc"), num_samples: int = 2_000) -> None:
    """Loads the extractor.

    Args:
      source: real images.
      folder: where to keep features of real images and the small classifier, one per run.
      extractor: makes the extractor, such as `@EfficientNetLite0`, `@Inception2015` or
        `@KerasFeatures`; by default a small classifier trained on the source.
      metrics: some of `fid`, `kid`, `prdc`, `is`, `swd` and, for a conditional generator,
        `intra_fid`.
      num_samples: number of real and of generated images to compare, at most `source.size`.
        Published numbers use 10,000 or 50,000.

    Raises:
      UsageError: a metric is unknown, or there are too few images for it.
    """
    from models.metrics import cache, comparison  # Slow to import (SciPy).
    self._needed = comparison.needs(metrics)
    self._metrics = list(metrics)
    self.num_samples = min(num_samples, source.size)
    comparison.check_counts(metrics, self.num_samples, self.num_samples)
    chosen = np.random.default_rng(_SEED).permutation(source.size)[:self.num_samples]
    self.chosen = np.sort(chosen)
    with distributed_evaluation.chief_first():
      self._extractor = extractor() if extractor else SmallClassifier(source, folder)
      self._real, _ = cache.gather_real(Source("data", source), self.chosen, self._extractor,
                                        self._needed, folder)
    if "intra_fid" in metrics:
      self._real.labels = np.array(unique(source.class_names))[labels_of(source)[self.chosen]]
    self.description = (
        f"{self.num_samples:,} real and {self.num_samples:,} generated images; features: "
        f"{self._extractor.name}; resizing: {self._extractor.resizing}"
        + ("" if self._extractor.is_inception else " (not Inception)"))

  def measure(self, generate: Callable[[int, slice], np.ndarray], classes: Classes = NO_CLASSES
              ) -> dict[str, float]:
    """Draws `num_samples` images, rounds them to 8 bits, and compares them; see `Quality`.

    Names depend on the features: `fid`, `kid`, `inception_score` and `intra_class_fid` with
    Inception; `frechet_distance`, `kernel_distance`, `score_of_classes` and
    `intra_class_frechet_distance` with others. The rest are `precision`, `recall`, `density`,
    `coverage`, `sliced_wasserstein_distance`. All are NaN if an image is not finite.

    Raises:
      UsageError: `intra_fid` of a generator without classes.
    """
    from models.metrics import comparison
    if "intra_fid" in self._metrics and not classes:
      raise UsageError("FeatureMetrics.metrics has 'intra_fid', but the generator has no classes; "
                       "train a conditional one, or leave 'intra_fid' out")
    names = [re.sub("[ -]", "_", name.lower().replace("é", "e")) for metric in self._metrics
             for name in comparison.names(metric, self._extractor.is_inception)]
    try:
      generated = comparison.gather_extracted(self._extracted(generate), self._extractor,
                                              self._needed)
    except FloatingPointError:
      return dict.fromkeys(names, np.nan)
    if classes:
      generated.labels = np.array(classes.names)[classes.in_shares(self.num_samples)]
    rows = comparison.compare(self._real, generated, self._extractor, self._metrics)
    return dict(zip(names, [row.value for row in rows], strict=True))

  def _extracted(self, generate: Callable[[int, slice], np.ndarray]
                 ) -> Iterator[tuple[np.ndarray, Extracted]]:
    """Yields RGB images, uint8 [n, h, w, 3], and their features, computed on all replicas.

    Raises a FloatingPointError if an image is not finite.
    """
    size = min(_AT_A_TIME, self.num_samples)

    def part(number: int) -> dict[str, np.ndarray]:
      images = np.asarray(generate(self.num_samples, slice(number * size, (number + 1) * size)))
      pixels = rgb(to_uint8(images).numpy())
      pixels = pixels[np.arange(size) % len(pixels)]  # The last part may be smaller.
      extracted = self._extractor(pixels)
      is_finite = np.isfinite(np.asarray(images, np.float64)).all()
      found = {"is_finite": np.asarray(is_finite), "features": extracted.features,
               "images": pixels if "images" in self._needed else pixels[:, :0]}
      return found if extracted.logits is None else {**found, "logits": extracted.logits}

    left = self.num_samples
    for found in distributed_evaluation.deal(part, -(-left // size)):
      if not found.pop("is_finite"):
        raise FloatingPointError
      found = {name: array[:left] for name, array in found.items()}
      yield found["images"], Extracted(found["features"], found.get("logits"))
      left -= size
