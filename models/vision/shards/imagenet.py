"""ImageNet's published layout of TFRecord shards, indexed where it lies.

    train-00000-of-01024, ..., validation-00127-of-00128

Records are a `tf.train.Example` each, with a JPEG file in `image/encoded`, its class from 1 on in
`image/class/label`, and the name of the class in `image/class/synset`, such as n01440764. The index
of a shard is kept beside it, or in `~/.cache/replicator` where the folder cannot be written.
"""

import glob
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from models.vision.images.thread_map import map_in_threads
from models.vision.shards import index as shard_index
from replicator import UsageError
from replicator.internals.tensorflow_internals import record_reader

import numpy as np
import tensorflow as tf
from absl import logging
from google.protobuf.message import DecodeError

_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})")
_LAYOUT = "write the path of shards in ImageNet's layout, or of those of models.vision.convert"
_CACHE = Path("~/.cache/replicator/shards")


def shards_at(path: str) -> list[Path]:
  """The shards in a folder, or of a pattern such as `imagenet/train-*`, in order; or none.

  Raises:
    UsageError: they are of several sets, or one is missing.
  """
  place = Path(path).expanduser()
  files = place.iterdir() if place.is_dir() else map(Path, glob.glob(str(place)))
  found = {file: match for file in sorted(files) if (match := _NAME.fullmatch(file.name))}
  setting = f"TFRecords.path = {path!r}"
  sets = sorted({f"{match[1]}-*-of-{match[3]}" for match in found.values()})
  if len(sets) > 1:
    folder = place if place.is_dir() else place.parent
    raise UsageError(f"{setting}: has the shards {' and '.join(sets)}; write which, such as "
                     f"'{folder / sets[0]}'")
  numbers = {int(match[2]) for match in found.values()}
  count = int(next(iter(found.values()))[3]) if found else 0
  if missing := set(range(count)) - numbers:
    raise UsageError(f"{setting}: has {len(found):,} of {count:,} shards, without "
                     f"{sets[0].replace('*', f'{min(missing):05d}')}; copy all")
  return list(found)


def read_indexes(shards: list[Path], skips: bool = False
                 ) -> tuple[list[np.ndarray], tuple[str, ...]]:
  """The entries of the images of each shard, with labels from 0 on, and the names of the classes.

  Shards without an index are read once, and indexed.

  Args:
    shards: the paths of n shards.
    skips: whether to do without corrupt records and what a truncated shard lacks, and to log them.
      An index without them is not kept, so that nobody takes it for whole.

  Raises:
    UsageError: a shard is not of this layout, or changed since it was indexed; or it is truncated
      or has a corrupt record.
  """
  indexes = list(map_in_threads(lambda shard: _index_of(shard, skips), shards))
  names = {int(label): str(name) for index in indexes
           for label, name in zip(index["labels"], index["names"], strict=True)}
  return ([index["images"] for index in indexes],
          tuple(names.get(label) or str(label) for label in range(max(names) + 1)))


def _index_of(shard: Path, skips: bool) -> Mapping[str, np.ndarray]:
  beside = shard_index.index_of(shard)
  folder = hashlib.sha256(os.fsencode(shard.parent.resolve())).hexdigest()[:16]
  cached = _CACHE.expanduser() / folder / beside.name
  index = next((index for index in (beside, cached) if index.exists()), None)
  if index is None:
    logging.log_every_n_seconds(logging.INFO, "Reads %s to index it, once", 10, shard)
    entries, names, is_whole = _read(shard, skips)
    more = {"labels": np.array(list(names)), "names": np.array(list(names.values()))}
    if not is_whole:
      return {"images": np.array(entries, shard_index.ENTRY), **more}
    try:
      shard_index.write_index(index := beside, shard, entries, **more)
    except OSError:  # The folder cannot be written.
      cached.parent.mkdir(parents=True, exist_ok=True)
      shard_index.write_index(index := cached, shard, entries, **more)
  remedy = f"copy it again, or remove {index} if the shard is right"
  return shard_index.checked_index(shard, index, remedy, skips)


def _read(shard: Path, skips: bool
          ) -> tuple[list[tuple[int, int, int, int]], dict[int, str], bool]:
  """The entries of a shard, the names of their labels, and whether all records could be read."""
  entries: list[tuple[int, int, int, int]] = []
  names: dict[int, str] = {}
  read, position, size, is_whole = record_reader(str(shard)), 0, shard.stat().st_size, True
  while position < size:
    where = f"{shard}: the record at byte {position}"
    try:
      record, after = read(position)
    except (tf.errors.DataLossError, IndexError) as error:
      end = _end_of_corrupt(shard, position, error)
      what = "is corrupt" if end else "is truncated, or the file has no TFRecords"
      if not skips:
        raise UsageError(f"{where} {what}; copy it again; to skip such records, set "
                         "TFRecords.on_error = 'skip'") from error
      logging.warning("TFRecords skips %s: it %s%s", where, what, "" if end else ", and ends there")
      is_whole, after = False, end or size
    else:
      content, label, name = _parsed(record, where)
      entries.append(shard_index.entry(position, record, content, label))
      names.setdefault(label, name)
    position = after
  if not names:
    raise UsageError(f"{shard}: has no record that can be read; copy it again")
  return entries, names, is_whole


def _end_of_corrupt(shard: Path, position: int, error: Exception) -> int | None:
  """Where the next record begins, if the error is about the data of a record; or None."""
  if f"corrupted record at {position + shard_index.BEFORE}" not in str(error):
    return None  # Its length is wrong, or the file ends.
  with shard.open("rb") as file:
    file.seek(position)
    length = int.from_bytes(file.read(8), "little")
  return position + shard_index.BEFORE + length + shard_index.AFTER


def _parsed(record: bytes, where: str) -> tuple[bytes, int, str]:
  """The encoded image of a record, its label from 0 on, and the name of its class."""
  try:
    features = tf.train.Example.FromString(record).features.feature
  except DecodeError as error:
    raise UsageError(f"{where} is no tf.train.Example; {_LAYOUT}") from error
  content = features["image/encoded"].bytes_list.value
  labels = features["image/class/label"].int64_list.value
  if len(content) != 1 or len(labels) != 1:
    raise UsageError(f"{where} has no image/encoded or no image/class/label; {_LAYOUT}")
  if labels[0] < 1:
    raise UsageError(f"{where} has the label {labels[0]}, and ImageNet's classes are numbered from "
                     "1; write the shards again so")
  names = features["image/class/synset"].bytes_list.value
  return content[0], labels[0] - 1, names[0].decode() if names else ""
