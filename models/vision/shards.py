"""Shards of encoded images: TFRecord files, and an index of where each image lies in them.

    OUT/index.json                       classes, numbers of images, the files of the shards
    OUT/images-00000-of-00004.tfrecord   records of `tf.train.Example`
    OUT/images-00000-of-00004.npz        the index of that file: places, checksums, labels

Any reader of TFRecords can read a shard: `image/encoded` is a JPEG, PNG, ... file,
`image/class/label` the number of the class, from 0 on, and `image/class/text` its name. With the
index, an image is read alone, without what comes before it and without parsing the record.
"""

import dataclasses
import io
import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import tensorflow as tf
from absl import logging

from models.vision.decoding import reason_of
from models.vision.pictures import Shape
from replicator.atomic import write_whole
from replicator.errors import UsageError

INDEX = "index.json"
UNFINISHED = ".conversion.json"
"""What a conversion is doing; removed at its end."""

_ENTRY = np.dtype([("offset", "<i8"), ("length", "<i8"), ("crc32", "<u4"), ("label", "<i4")])
_BEFORE, _AFTER = 12, 4  # Bytes of a TFRecord around its data: length and checksums.
_ENDS = 1 << 16  # Bytes at the beginning and the end of a shard that identify it.


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
      entries.append((position + _BEFORE + record.index(content), len(content),
                      zlib.crc32(content), label))
      position += _BEFORE + len(record) + _AFTER
  with temporary.open("rb") as written:
    os.fsync(written.fileno())
  temporary.replace(path)
  index = io.BytesIO()
  np.savez(index, images=np.array(entries, _ENTRY), shard=_identity(path))
  write_whole(_index_of(path), index.getvalue())


def is_whole(path: Path) -> bool:
  """Whether a shard and its index were written, and the one is of the other."""
  return (path.exists() and _index_of(path).exists()
          and np.array_equal(_read_index(path)[1], _identity(path)))


def _record(content: bytes, label: int, text: str) -> bytes:
  def of_bytes(value: bytes) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

  features = {"image/encoded": of_bytes(content), "image/class/text": of_bytes(text.encode()),
              "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))}
  example = tf.train.Example(features=tf.train.Features(feature=features))
  return example.SerializeToString(deterministic=True)


def _index_of(path: Path) -> Path:
  return path.with_suffix(".npz")


def _read_index(path: Path) -> tuple[np.ndarray, np.ndarray]:
  """The entries of a shard's images, and the `_identity` of the shard."""
  try:
    with np.load(_index_of(path), allow_pickle=False) as content:
      return content["images"], content["shard"]
  except Exception as error:  # NumPy and zipfile raise errors of many types for broken files.
    raise UsageError(f"{_index_of(path)}: cannot be read ({reason_of(error)}); convert again"
                     ) from error


def _identity(path: Path) -> np.ndarray:
  """The bytes of a file, and a checksum of its two ends, int64 [2]."""
  size = path.stat().st_size
  with path.open("rb") as file:
    ends = file.read(_ENDS)
    file.seek(max(0, size - _ENDS))
    ends += file.read()
  return np.array([size, zlib.crc32(ends)], np.int64)


@dataclasses.dataclass(frozen=True)
class Facts:
  """What `index.json` holds."""

  class_names: tuple[str, ...]
  images: int
  image_shape: Shape | None  # None, if images have their own sizes.
  shards: tuple[str, ...]


def write_facts(root: Path, facts: Facts) -> None:
  """Writes `index.json`, when all shards are written."""
  write_whole(root / INDEX, json.dumps(dataclasses.asdict(facts), indent=1) + "\n")


class ShardedImages:
  """The images of shards, as `EncodedImages`; only the index is in memory, 24 bytes an image.

  Their `image_shape` is None if they have their own sizes.
  """

  def __init__(self, path: str, may_be_truncated: bool = False) -> None:
    """Reads the index, and checks that it is of these shards.

    Args:
      path: the folder of the shards.
      may_be_truncated: whether to take a truncated shard, whose last images cannot be read.

    Raises:
      UsageError: `path` has no index, or a shard is missing, truncated or another one.
    """
    self.path = str(path)
    facts = _facts(self.path)
    self.class_names = facts.class_names
    self.image_shape = facts.image_shape
    root = Path(path).expanduser()
    self._shards = [root / name for name in facts.shards]
    entries = [_checked_index(shard, may_be_truncated) for shard in self._shards]
    self._starts = np.cumsum([0, *map(len, entries)])
    self._entries = np.concatenate(entries)
    self.labels = np.ascontiguousarray(self._entries["label"])
    if len(self._entries) != facts.images:
      raise UsageError(f"{self.path}: its shards have {len(self._entries):,} images, and {INDEX} "
                       f"says {facts.images:,}; convert again")

  def name(self, index: int) -> str:
    """The shard and the number of the record."""
    shard, record = self._place(index)
    return f"{shard}: record {record}"

  def read(self, index: int) -> bytes:
    """The encoded image; raises a ValueError if it is not the one that was indexed."""
    entry = self._entries[index]
    with self._place(index)[0].open("rb") as file:
      file.seek(int(entry["offset"]))
      content = file.read(int(entry["length"]))
    if len(content) < entry["length"]:
      raise ValueError("the file is truncated")
    if zlib.crc32(content) != entry["crc32"]:
      raise ValueError("its checksum is not that of the index: the record is corrupt, or the file "
                       "changed since it was indexed")
    return content

  def files(self) -> list[str]:
    """The paths of the shards."""
    return list(map(str, self._shards))

  def _place(self, index: int) -> tuple[Path, int]:
    number = int(np.searchsorted(self._starts, index, "right")) - 1
    return self._shards[number], int(index - self._starts[number])


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


def _checked_index(path: Path, may_be_truncated: bool) -> np.ndarray:
  if not path.exists():
    raise UsageError(f"{path}: no such file; copy the shard again, or convert again")
  entries, expected = _read_index(path)
  found = _identity(path)
  if found[0] < expected[0]:
    line = f"{path}: is truncated: it has {found[0]:,} of {expected[0]:,} bytes"
    if not may_be_truncated:
      raise UsageError(f"{line}; copy it again, or convert again")
    lost = np.sum(entries["offset"] + entries["length"] > found[0])
    logging.warning("%s, without %d of its %d images", line, lost, len(entries))
    return entries
  if not np.array_equal(found, expected):
    raise UsageError(f"{path}: {_index_of(path).name} is the index of another file, or the file "
                     "changed since it was indexed; copy both again, or convert again")
  return entries
