"""A run that logs what it sees of images in a folder and in shards, decoded as they are drawn.

    python -m tests.programs.drawn_images --gin_param="see_images.path = 'DIR'" --workdir=RUN
"""

import gin
import numpy as np
import tensorflow as tf

import replicator
from models.vision.augmentation.random_view import Augmentation, Augmented
from models.vision.files.image_folder import ImageFolder
from models.vision.shards.tfrecords import TFRecords
from replicator import app

SIDE = 16
PRIME = 1_048_573  # Checksums are below it, so that float32 has them exactly, too.


class FolderAndShards:
  """The images of `path/folder` and of `path/shards`, both augmented and never kept decoded."""

  batched = True

  def __init__(self, path: str) -> None:
    make = lambda: Augmentation(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
    self._sources = {
        "folder": Augmented(lambda: ImageFolder(f"{path}/folder", SIDE, memory_limit=0), make),
        "shards": Augmented(lambda: TFRecords(f"{path}/shards", SIDE, memory_limit=0), make)}
    self.size = self._sources["folder"].size

  def load(self, index: tf.Tensor) -> dict[str, dict[str, tf.Tensor]]:
    """The examples at int64 `index` [n] as each source has them."""
    return {name: source.load(index) for name, source in self._sources.items()}

  def augmented(self, index: tf.Tensor, seed: tf.Tensor) -> dict[str, dict[str, tf.Tensor]]:
    """The same, augmented."""
    return {name: source.augmented(index, seed) for name, source in self._sources.items()}


def checksums(images: tf.Tensor) -> tf.Tensor:
  """A number that depends on every pixel: uint8 `[n, SIDE, SIDE, 3]` -> int64 [n]."""
  weights = np.arange(1, SIDE * SIDE * 3 + 1, dtype=np.int64) ** 2
  pixels = tf.cast(tf.reshape(images, [-1, len(weights)]), tf.int64)
  return tf.reduce_sum(pixels * weights, axis=1) % PRIME


def see(batch: dict[str, dict[str, tf.Tensor]]) -> dict[str, tf.Tensor]:
  """The class and the checksum of each image of the global batch, by the source and the row."""
  seen = {}
  for name, examples in batch.items():
    numbers = tf.stack([tf.cast(x, tf.float64) for x in (
        examples["label"], checksums(examples["image"]))], axis=1)
    for row, (label, checksum) in enumerate(map(tf.unstack, tf.unstack(
        replicator.all_concat(numbers)))):
      seen |= {f"{name}/{row}/class": label, f"{name}/{row}/checksum": checksum}
  return seen


@gin.configurable
def see_images(workdir: str, path: str = gin.REQUIRED) -> None:
  """Trains nothing."""
  replicator.train(lambda: see, FolderAndShards(path), workdir=workdir)


def run(words: list[str]) -> None:
  """Runs a command line in this process."""
  app.run(see_images, words)


if __name__ == "__main__":
  app.run(see_images)
