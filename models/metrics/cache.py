"""What was computed from real images, kept on the disk: an evaluation does not compute it again."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from absl import logging

from models.metrics.extractor import Extractor
from models.vision.images import ImageSource, read
from replicator import atomic

_AT_A_TIME = 1024


@dataclasses.dataclass(frozen=True)
class Key:
  """What features of real images, and their statistics, depend on.

  Attributes:
    data: the class of the source, and the SHA-256 of the images in use.
    count: how many images are in use.
    resolution: height and width of the images, such as `64x64`.
    resizing: how the extractor resizes them.
    features: the name of the extractor.
  """

  data: str
  count: int
  resolution: str
  resizing: str
  features: str


def key_of(source: ImageSource, indices: np.ndarray, extractor: Extractor) -> Key:
  """The key for the features of the images at `indices` [n] of a source, in that order.

  It reads all of these images, so that other data under the same name have another key.
  """
  digest = hashlib.sha256()
  for i in range(0, len(indices), _AT_A_TIME):
    images, _ = read(source, indices[i:i + _AT_A_TIME])
    digest.update(images.tobytes())
  height, width, _ = source.image_shape
  return Key(f"{type(source).__name__} {digest.hexdigest()}", len(indices), f"{height}x{width}",
             extractor.resizing, extractor.name)


def cached(folder: str | os.PathLike, key: Key,
           compute: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
  """The arrays that `compute` makes, read from the disk if they were made for this key before.

  They are kept in a sub-folder with checksums. If it is damaged, a warning is logged and they are
  made again; and if they cannot be kept, a warning is logged, too.
  """
  facts = dataclasses.asdict(key)
  kept = Path(folder) / hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
  if kept.exists():
    try:
      if atomic.check(kept) == facts:
        return {file.stem: np.load(file) for file in kept.glob("*.npy")}
      reason = "it has another key"
    except (atomic.Corrupt, OSError) as error:
      reason = str(error)
    logging.warning("%s is not what was kept there (%s): it is made again", kept, reason)
  arrays = compute()
  try:
    atomic.publish(kept, lambda path: _save(path, arrays), facts)
  except OSError as error:
    logging.warning("%s cannot be kept (%s): the next evaluation computes it again", kept, error)
  return arrays


def _save(folder: Path, arrays: dict[str, np.ndarray]) -> None:
  for name, array in arrays.items():
    np.save(folder / f"{name}.npy", array)
