"""On-disk cache of real images' features and statistics, for later evaluations."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from models.metrics.comparison import Gathered, gather
from models.metrics.distances.feature_statistics import FeatureStatistics
from models.metrics.extractors.extractor import Extractor
from models.metrics.images.image_sets import ImageSet, Seen
from replicator import atomic

import numpy as np
from absl import logging

Shown = Callable[[str, Iterator[np.ndarray]], Iterator[np.ndarray]]
"""Yields batches of images, and shows the progress of their processing."""


def gather_real(real: ImageSet, indices: np.ndarray, extractor: Extractor | None, needed: set[str],
                folder: str | os.PathLike,
                shown: Shown = lambda what, batches: batches) -> tuple[Gathered, Seen]:
  """Gathers metrics' inputs from real images, using the cache, and facts about the images.

  All images are read even if their features are cached, because their digest is in the key: if the
  images under a name change, so do the features. `indices` are ascending, [n]; `folder` is the
  cache. Logits of real images are not computed.

  Raises:
    UsageError: as for `gather`.
  """
  def batches(what: str) -> Iterator[np.ndarray]:
    return shown(what, real.batches(indices))

  seen = Seen()
  images = [some for some in seen(batches("reading real images")) if "images" in needed]
  gathered = Gathered(seen.count, FeatureStatistics.of(np.empty([0, 1])))
  if images:
    gathered.images = np.concatenate(images)
  if extractor is None:
    return gathered, seen
  height, width = real.resolution
  key = {"data": seen.sha256, "count": seen.count, "resolution": f"{height}x{width}",
         "resizing": extractor.resizing, "features": extractor.name}

  def computed(what: str) -> Gathered:
    return gather(batches("features of real images"), extractor, {what}, "real")

  if "features" in needed:
    gathered.features = cached(Path(folder) / "features", key,
                               lambda: {"features": computed("features").features})["features"]
    gathered.statistics = FeatureStatistics.of(gathered.features, "real")
  elif "statistics" in needed:
    arrays = cached(Path(folder) / "statistics", key,
                    lambda: _arrays(computed("statistics").statistics))
    gathered.statistics = FeatureStatistics(seen.count, **arrays)
  return gathered, seen


def _arrays(statistics: FeatureStatistics) -> dict[str, np.ndarray]:
  return {"mean": statistics.mean, "scatter": statistics.scatter}


def cached(folder: str | os.PathLike, key: dict[str, Any],
           compute: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
  """Returns the arrays of `compute`, from disk if they were already computed for this key.

  They are stored in a sub-folder with checksums. If it is damaged, a warning is logged, and they
  are recomputed. A failure to store them is also logged as a warning.
  """
  kept = Path(folder) / hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
  if kept.exists():
    try:
      if atomic.check(kept) == key:
        return {file.stem: np.load(file) for file in kept.glob("*.npy")}
      reason = "its key differs"
    except (atomic.Corrupt, OSError) as error:
      reason = str(error)
    logging.warning("%s is not a valid cache entry (%s): it is computed again", kept, reason)
  arrays = compute()
  try:
    atomic.publish(kept, lambda path: _save(path, arrays), key)
  except OSError as error:
    logging.warning("%s cannot be cached (%s): the next evaluation computes it again", kept, error)
  return arrays


def _save(folder: Path, arrays: dict[str, np.ndarray]) -> None:
  for name, array in arrays.items():
    np.save(folder / f"{name}.npy", array)
