"""Shards of encoded images: TFRecord files, and an index of where each image lies in them.

    OUT/index.json                       classes, numbers of images, the files of the shards
    OUT/images-00000-of-00004.tfrecord   records of `tf.train.Example`
    OUT/images-00000-of-00004.npz        the index of that file: places, checksums, labels

Any reader of TFRecords can read a shard: `image/encoded` is a JPEG, PNG, ... file,
`image/class/label` the number of the class, from 0 on, and `image/class/text` its name. With the
index, an image is read alone, without what comes before it and without parsing the record.
"""

import dataclasses
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from models.vision.images.decode import Shape
from models.vision.images.encoded_images import MEMORY_LIMIT, DecodedImages, EncodedImages
from models.vision.shards import imagenet
from models.vision.shards import index as shard_index
from replicator import UsageError
from replicator.atomic import write_whole

import gin
import numpy as np
import tensorflow as tf

INDEX = "index.json"
UNFINISHED = ".conversion.json"
"""The mark of a conversion that is not finished; removed at its end."""


def shard_name(number: int, count: int) -> str:
  """The name of a shard, such as `images-00000-of-00004.tfrecord`."""
  return f"images-{number:05d}-of-{count:05d}.tfrecord"


def write_shard(path: Path, examples: Iterable[tuple[bytes, int]],
                class_names: tuple[str, ...]) -> None:
  """Writes a shard of encoded images with their labels, and then its index, each whole or not."""
  temporary = path.with_name(f".{path.name}")  # An interrupted conversion overwrites it.
  entries, position = [], 0
  with tf.io.TFRecordWriter(str(temporary)) as writer:
    for content, label in examples:
      record = _record(content, label, class_names[label])
      writer.write(record)
      entries.append(shard_index.entry(position, record, content, label))
      position += shard_index.BEFORE + len(record) + shard_index.AFTER
  with temporary.open("rb") as written:
    os.fsync(written.fileno())
  temporary.replace(path)
  shard_index.write_index(shard_index.index_of(path), path, entries)


def _record(content: bytes, label: int, text: str) -> bytes:
  def of_bytes(value: bytes) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

  features = {"image/encoded": of_bytes(content), "image/class/text": of_bytes(text.encode()),
              "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))}
  example = tf.train.Example(features=tf.train.Features(feature=features))
  return example.SerializeToString(deterministic=True)


@dataclasses.dataclass(frozen=True)
class Facts:
  """The content of `index.json`."""

  class_names: tuple[str, ...]
  images: int
  image_shape: Shape | None  # None, if images have their own sizes.
  shards: tuple[str, ...]


def write_facts(root: Path, facts: Facts) -> None:
  """Writes `index.json`, when all shards are written."""
  write_whole(root / INDEX, json.dumps(dataclasses.asdict(facts), indent=1) + "\n")


class ShardedImages(EncodedImages):
  """The images of shards, as `EncodedImages`; only the index is in memory, 36 bytes an image."""

  def __init__(self, path: str, skips: bool = False) -> None:
    """Reads the index, and checks that it is of these shards.

    Args:
      path: the folder that a conversion wrote; or a folder of shards in ImageNet's layout, or a
        pattern of their names.
      skips: whether to do without the images that a truncated shard lacks, or whose records were
        corrupt when they were indexed, and to log them.

    Raises:
      UsageError: `path` has no index, no image, or a shard is missing, truncated or another one.
    """
    self.path = str(path)
    self._shards = imagenet.shards_at(self.path)
    if self._shards:
      entries, self.class_names = imagenet.read_indexes(self._shards, skips)
    else:
      facts = _facts(self.path)
      self.class_names, self.image_shape = facts.class_names, facts.image_shape
      self._shards = [Path(path).expanduser() / name for name in facts.shards]
      entries = [shard_index.checked_index(shard, shard_index.index_of(shard),
                                           "copy it again, or convert again", skips)["images"]
                 for shard in self._shards]
      if sum(map(len, entries)) != facts.images and not skips:
        raise UsageError(f"{path}: its shards have {sum(map(len, entries)):,} images, and {INDEX} "
                         f"says {facts.images:,}; convert again")
    self._files = list(map(str, self._shards))
    self._starts = np.cumsum([0, *map(len, entries)])
    self._entries = np.concatenate(entries)
    self.labels = self._entries["label"]
    if not len(self.labels):
      raise UsageError(f"TFRecords.path = {self.path!r}: has no whole image: its shards are "
                       "truncated; copy them again")

  def name(self, index: int) -> str:
    """The shard, and where the image begins in it."""
    return f"{self._shard_of(index)}: the image at byte {self._entries[index]['offset']}"

  def read(self, index: int) -> bytes:
    """The encoded image; raises a ValueError if it is not the one that was indexed."""
    return shard_index.read_image(self._shard_of(index), self._entries[index])

  def facts(self) -> Sequence[np.ndarray]:
    """The checksums of the images."""
    return (self._entries["crc32"],)

  def _shard_of(self, index: int) -> Path:
    return self._shards[int(np.searchsorted(self._starts, index, "right")) - 1]


@gin.configurable
class TFRecords(DecodedImages):
  """Images of the shards that `replicator convert` wrote: an `ImageSource`.

  Example `i` is example `i` of what was converted, so a run draws the same examples from both.

  Shards in ImageNet's published layout, `train-00000-of-01024`, are read as well. The first run
  reads them once to index them.
  """

  def __init__(self, path: str, resolution: int | None = None, on_error: str = "raise",
               memory_limit: int = MEMORY_LIMIT) -> None:
    """Reads the index of the shards.

    Args:
      path: the folder of the shards; or a pattern, `imagenet/train-*`, where there are several
        sets of them.
      resolution: height and width of the examples, in pixels; by default, those of the conversion.
      on_error: as that of `ImageFolder`; 'skip' also does without what a truncated shard lacks.
      memory_limit: as that of `ImageFolder`.

    Raises:
      UsageError: as `ShardedImages`; or a record cannot be decoded, or an argument is wrong.
    """
    images = ShardedImages(path, skips=on_error == "skip")
    shape = images.image_shape
    if resolution is None:
      if shape is None:
        raise UsageError(f"TFRecords.resolution: must be set, since the images in {path} have "
                         "their own sizes")
      resolution = shape[0]
    super().__init__(images, resolution, on_error, memory_limit, channels=shape[2] if shape else 3)


def _facts(path: str) -> Facts:
  root, setting = Path(path).expanduser(), f"TFRecords.path = {path!r}"
  if not root.is_dir():
    raise UsageError(f"{setting}: no such folder; write the folder that models.vision.convert "
                     "wrote")
  if (root / UNFINISHED).exists():
    raise UsageError(f"{setting}: its conversion is not finished; run the same command again")
  if not (root / INDEX).exists():
    raise UsageError(f"{setting}: has no {INDEX}; make shards of images with: python -m "
                     "models.vision.convert SOURCE OUT --shards=N")
  try:
    facts = json.loads((root / INDEX).read_text())
    shape = facts["image_shape"]
    return Facts(tuple(facts["class_names"]), facts["images"], shape and tuple(shape),
                 tuple(facts["shards"]))
  except (ValueError, KeyError, TypeError) as error:
    raise UsageError(f"{root / INDEX}: is not what models.vision.convert wrote; convert again"
                     ) from error
