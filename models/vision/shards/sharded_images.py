"""Shards of encoded images: TFRecord files, and an index of where each image is.

    OUT/index.json                       classes, numbers of images, the files of the shards
    OUT/images-00000-of-00004.tfrecord   records of `tf.train.Example`
    OUT/images-00000-of-00004.npz        the index of that file: places, checksums, labels

Any reader of TFRecords can read a shard: `image/encoded` is a JPEG, PNG, ... file,
`image/class/label` the number of the class, from 0 on, and `image/class/text` its name. The index
allows reading a single image, without previous records and without parsing.
"""

import dataclasses
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from models.vision.images.decode import Shape
from models.vision.images.encoded_images import MEMORY_LIMIT, DecodedImages, EncodedImages
from models.vision.shards import index as shard_index
from models.vision.shards import other_shards
from replicator import UsageError
from replicator.atomic import write_whole

import gin
import numpy as np
import tensorflow as tf

INDEX = "index.json"
UNFINISHED = ".conversion.json"
"""The file that marks an unfinished conversion; removed at the end."""


def shard_name(number: int, count: int) -> str:
  """Returns the name of a shard, such as `images-00000-of-00004.tfrecord`."""
  return f"images-{number:05d}-of-{count:05d}.tfrecord"


def write_shard(path: Path, examples: Iterable[tuple[bytes, int]],
                class_names: tuple[str, ...]) -> None:
  """Writes a shard of encoded images with labels, then its index, each atomically."""
  temporary = path.with_name(f".{path.name}")  # A resumed conversion overwrites it.
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
  image_shape: Shape | None  # None if image sizes differ.
  shards: tuple[str, ...]


def write_facts(root: Path, facts: Facts) -> None:
  """Writes `index.json`, after all shards."""
  write_whole(root / INDEX, json.dumps(dataclasses.asdict(facts), indent=1) + "\n")


class ShardedImages(EncodedImages):
  """The images of shards, as `EncodedImages`; only the index is in memory, 36 bytes per image."""

  def __init__(self, path: str, skips: bool = False,
               keys: other_shards.Keys = other_shards.DEFAULT) -> None:
    """Reads the index, and checks that it matches the shards.

    Args:
      path: the folder that a conversion wrote; or a folder of other shards, or a pattern of their
        names.
      skips: whether to skip and log images that are missing in a truncated shard, or whose records
        were corrupt when indexed.
      keys: keys of images and labels in other shards.

    Raises:
      UsageError: `path` has no index or no image, or a shard is missing, truncated or different.
    """
    self.path = str(path)
    root = Path(path).expanduser()
    is_ours = (root / INDEX).exists() or (root / UNFINISHED).exists()
    self._shards = [] if is_ours else other_shards.shards_at(self.path)
    if self._shards:
      entries, self.class_names = other_shards.read_indexes(self._shards, skips, keys)
    else:
      facts = _facts(self.path)
      self.class_names, self.image_shape = facts.class_names, facts.image_shape
      self._shards = [Path(path).expanduser() / name for name in facts.shards]
      entries = [shard_index.checked_index(shard, shard_index.index_of(shard),
                                           "copy it again, or convert again", skips)["images"]
                 for shard in self._shards]
      if sum(map(len, entries)) != facts.images and not skips:
        raise UsageError(f"{path}: its shards have {sum(map(len, entries)):,} images, but {INDEX} "
                         f"says {facts.images:,}; convert again")
    self._files = list(map(str, self._shards))
    self._starts = np.cumsum([0, *map(len, entries)])
    self._entries = np.concatenate(entries)
    self.labels = self._entries["label"]
    if not len(self.labels):
      raise UsageError(f"TFRecords.path = {self.path!r}: has no complete image: its shards are "
                       "truncated; copy them again")

  def name(self, index: int) -> str:
    """Returns the shard, and the image's position in it."""
    return f"{self._shard_of(index)}: the image at byte {self._entries[index]['offset']}"

  def read(self, index: int) -> bytes:
    """Returns the encoded image; raises a ValueError if its checksum is wrong."""
    return shard_index.read_image(self._shard_of(index), self._entries[index])

  def facts(self) -> Sequence[np.ndarray]:
    """Returns the checksums of the images."""
    return (self._entries["crc32"],)

  def _shard_of(self, index: int) -> Path:
    return self._shards[int(np.searchsorted(self._starts, index, "right")) - 1]


@gin.configurable
class TFRecords(DecodedImages):
  """Images in shards written by `replicator convert`: an `ImageSource`.

  Example `i` is example `i` of the converted data, so a run draws the same examples from both.

  It also reads shards in ImageNet's published layout, `train-00000-of-01024`, and others that end
  in .tfrec or .tfrecord. The first run reads them once to index them.
  """

  def __init__(self, path: str, resolution: int | None = None, on_error: str = "raise",
               memory_limit: int = MEMORY_LIMIT, image: str = other_shards.DEFAULT.image,
               label: str | None = other_shards.DEFAULT.label) -> None:
    """Reads the index of the shards.

    Args:
      path: the folder of the shards; or a pattern, `imagenet/train-*`, if the folder has several
        sets.
      resolution: height and width of the examples, in pixels; by default, those of the conversion.
      on_error: see `ImageFolder`; 'skip' also skips missing images of truncated shards.
      memory_limit: see `ImageFolder`.
      image: the key of the encoded image in a `tf.train.Example` of another program.
      label: the key of its class, a number from 0 on (from 1 on in ImageNet's layout) or a name;
        None for images of one class.

    Raises:
      UsageError: see `ShardedImages`; or a record cannot be decoded, or an argument is invalid.
    """
    images = ShardedImages(path, on_error == "skip", other_shards.Keys(image, label))
    shape = images.image_shape
    if resolution is None:
      if shape is None:
        raise UsageError(f"TFRecords.resolution: must be set, since the images in {path} have "
                         "different sizes")
      resolution = shape[0]
    super().__init__(images, resolution, on_error, memory_limit, channels=shape[2] if shape else 3)


def _facts(path: str) -> Facts:
  root, setting = Path(path).expanduser(), f"TFRecords.path = {path!r}"
  if not root.is_dir():
    raise UsageError(f"{setting}: no such folder; use a folder made by replicator convert, or a "
                     "pattern such as flowers/*.tfrec")
  if (root / UNFINISHED).exists():
    raise UsageError(f"{setting}: its conversion is not finished; run the same command again")
  if not (root / INDEX).exists():
    raise UsageError(f"{setting}: has no {INDEX}, and no files that end in .tfrecord or .tfrec; "
                     "make shards of images with: replicator convert SOURCE OUT --shards=N")
  try:
    facts = json.loads((root / INDEX).read_text())
    shape = facts["image_shape"]
    return Facts(tuple(facts["class_names"]), facts["images"], shape and tuple(shape),
                 tuple(facts["shards"]))
  except (ValueError, KeyError, TypeError) as error:
    raise UsageError(f"{root / INDEX}: was not written by replicator convert; convert again"
                     ) from error
