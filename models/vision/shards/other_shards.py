"""TFRecord shards written by other programs, indexed in place.

    train-00000-of-01024, ..., validation-00127-of-00128     ImageNet's published layout
    flowers/00-512x512-798.tfrec, ...                        any other

Each record is a `tf.train.Example`. In ImageNet's layout, a JPEG file is in `image/encoded`, its
class from 1 on in `image/class/label`, and the name of the class in `image/class/synset`, such as
n01440764. Other files end in .tfrec, .tfrecord or .tfrecords, and may have different `Keys`. The
index of a shard is stored next to it, or in `~/.cache/replicator` if the folder is not writable.
"""

import glob
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from models.vision.images import labels as labels_lib
from models.vision.images.classes import in_order
from models.vision.images.thread_map import map_in_threads
from models.vision.shards import index as shard_index
from replicator import UsageError
from replicator.internals.tensorflow_internals import record_reader

import numpy as np
import tensorflow as tf
from absl import logging
from google.protobuf.message import DecodeError

_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.tfrec\w*)?")
_ENDINGS = (".tfrec", ".tfrecord", ".tfrecords", ".tfrec.gz", ".tfrecord.gz", ".tfrecords.gz")
_SYNSET, _TEXT = "image/class/synset", "image/class/text"
_CACHE = Path("~/.cache/replicator/shards")
_COMPRESSED = (b"\x1f\x8b", b"\x78\x01", b"\x78\x9c", b"\x78\xda")  # gzip, and zlib.


class Keys(NamedTuple):
  """The keys of the image and the label in an example."""

  image: str = "image/encoded"
  label: str | None = "image/class/label"  # None for images of one class.
  first: int = 0  # The label of the first class.

  def of(self, shard: Path) -> "Keys":
    """Returns the keys for a shard: in ImageNet's layout, labels start at 1."""
    match = _NAME.fullmatch(shard.name)
    is_imagenet = match and not match[4] and self.label == DEFAULT.label
    return self._replace(first=1) if is_imagenet else self

  def stored(self) -> np.ndarray:
    """Returns the keys as stored in an index."""
    return np.array([self.image, self.label or "", str(self.first)])


DEFAULT = Keys()
"""The keys of ImageNet's layout, and of our own shards."""


def shards_at(path: str) -> list[Path]:
  """Lists the shards in a folder, or of a pattern such as `imagenet/train-*`, in order, if any.

  Raises:
    UsageError: they belong to several sets, or one is missing.
  """
  place = Path(path).expanduser()
  files = place.iterdir() if place.is_dir() else map(Path, glob.glob(str(place)))
  shards = [file for file in sorted(files) if not file.name.startswith(".")
            and (_NAME.fullmatch(file.name) or file.name.endswith(_ENDINGS))]
  found = [match for file in shards if (match := _NAME.fullmatch(file.name))]
  setting = f"TFRecords.path = {path!r}"
  sets = sorted({f"{match[1]}-*-of-{match[3]}{match[4] or ''}" for match in found})
  if len(sets) > 1:
    folder = place if place.is_dir() else place.parent
    raise UsageError(f"{setting}: has the shards {' and '.join(sets)}; choose one set, such as "
                     f"'{folder / sets[0]}'")
  numbers = {int(match[2]) for match in found}
  count = int(found[0][3]) if found else 0
  if missing := set(range(count)) - numbers:
    raise UsageError(f"{setting}: has {len(found):,} of {count:,} shards, without "
                     f"{sets[0].replace('*', f'{min(missing):05d}')}; copy all of them")
  return shards


def read_indexes(shards: list[Path], skips: bool = False, keys: Keys = DEFAULT
                 ) -> tuple[list[np.ndarray], tuple[str, ...]]:
  """Returns the image entries of each shard, with labels from 0 on, and the class names.

  If classes are given by numbers, those with images are the classes, as elsewhere.

  Shards without an index are read once, and indexed.

  Args:
    shards: the paths of n shards.
    skips: whether to skip and log corrupt records, and missing ones of truncated shards. An index
      without them is not stored, so that it is not mistaken for a complete one.
    keys: the keys of the image and the label in an example.

  Raises:
    UsageError: a shard does not have this layout, or has changed since it was indexed; or it is
      truncated or has a corrupt record.
  """
  indexes = list(map_in_threads(lambda shard: _index_of(shard, skips, keys.of(shard)), shards))
  names = {int(label): str(name) for index in indexes
           for label, name in zip(index["labels"], index["names"], strict=True)}
  if min(names) >= 0:
    images, what = [index["images"] for index in indexes], f"{shards[0].parent}: {keys.label}"
    return images, _numbered(images, names, what)
  if max(names) >= 0:
    raise UsageError(f"{shards[0].parent}: some labels in {keys.label} are numbers, and some are "
                     "names; write the shards again with one kind")
  words = in_order(list({str(name) for index in indexes for name in index["names"]}))
  for index in indexes:  # Each shard has its own numbers: -1, -2, ...
    places = np.array([words.index(name) for name in index["names"]], np.int32)
    index["images"]["label"] = places[-1 - index["images"]["label"]]
  return [index["images"] for index in indexes], tuple(words)


def _numbered(images: list[np.ndarray], names: Mapping[int, str], what: str) -> tuple[str, ...]:
  """Renumbers labels by the classes that have images; returns the names of these.

  If a class has no name, its label is its name.
  """
  known = np.array(sorted(names))
  _, numbers = labels_lib.from_numbers(known, what)
  places, class_names = labels_lib.from_numbers(
      np.arange(len(known)), what,
      [names[label] or number for label, number in zip(known.tolist(), numbers, strict=True)])
  for each in images:
    each["label"] = places[np.searchsorted(known, each["label"])]
  return class_names


def _index_of(shard: Path, skips: bool, keys: Keys) -> Mapping[str, np.ndarray]:
  beside = shard_index.index_of(shard)
  folder = hashlib.sha256(os.fsencode(shard.parent.resolve())).hexdigest()[:16]
  cached = _CACHE.expanduser() / folder / beside.name
  for index in filter(Path.exists, (beside, cached)):
    remedy = f"copy it again, or remove {index} if the shard is right"
    found = shard_index.checked_index(shard, index, remedy, skips)
    if "keys" in found and np.array_equal(found["keys"], keys.stored()):
      return found
  logging.log_every_n_seconds(logging.INFO, "Indexing %s, which is done once", 10, shard)
  entries, names, is_whole = _read(shard, skips, keys)
  more = {"labels": np.array(list(names)), "names": np.array(list(names.values())),
          "keys": keys.stored()}
  if not is_whole:
    return {"images": np.array(entries, shard_index.ENTRY), **more}
  try:
    shard_index.write_index(index := beside, shard, entries, **more)
  except OSError:  # The folder cannot be written.
    cached.parent.mkdir(parents=True, exist_ok=True)
    shard_index.write_index(index := cached, shard, entries, **more)
  return shard_index.checked_index(shard, index, f"remove {index}", skips)


def _read(shard: Path, skips: bool, keys: Keys
          ) -> tuple[list[tuple[int, int, int, int]], dict[int, str], bool]:
  """Reads a shard; returns entries, names by label, and whether all records could be read.

  Classes that only have names get the labels -1, -2, ...
  """
  entries: list[tuple[int, int, int, int]] = []
  names: dict[int, str] = {}
  words: dict[str, int] = {}
  read, position, size, is_whole = record_reader(str(shard)), 0, shard.stat().st_size, True
  while position < size:
    where = f"{shard}: the record at byte {position}"
    try:
      record, after = read(position)
    except (tf.errors.DataLossError, IndexError) as error:
      if position == 0:
        _refuse_compressed(shard)
      end = _end_of_corrupt(shard, position, error)
      what = "is corrupt" if end else "is truncated, or the file has no TFRecords"
      if not skips:
        raise UsageError(f"{where} {what}; copy it again; to skip such records, set "
                         "TFRecords.on_error = 'skip'") from error
      logging.warning("TFRecords skips %s: it %s%s", where, what, "" if end else ", and ends there")
      is_whole, after = False, end or size
    else:
      content, label, name = _parsed(record, where, keys)
      if label is None:
        label = words.setdefault(name, -1 - len(words))
      entries.append(shard_index.entry(position, record, content, label))
      names.setdefault(label, name)
    position = after
  if not names:
    raise UsageError(f"{shard}: has no record that can be read; copy it again")
  return entries, names, is_whole


def _refuse_compressed(shard: Path) -> None:
  """Raises a UsageError if a file is compressed by gzip or zlib."""
  with shard.open("rb") as file:
    if file.read(2) in _COMPRESSED:
      raise UsageError(f"{shard}: is compressed, so its images cannot be read one by one; unpack "
                       f"it, for example with: gunzip < {shard.name} > unpacked.tfrecord")


def _end_of_corrupt(shard: Path, position: int, error: Exception) -> int | None:
  """Returns where the next record begins if the error concerns a record's data; else None."""
  if f"corrupted record at {position + shard_index.BEFORE}" not in str(error):
    return None  # Its length is wrong, or the file ends.
  with shard.open("rb") as file:
    file.seek(position)
    length = int.from_bytes(file.read(8), "little")
  return position + shard_index.BEFORE + length + shard_index.AFTER


def _parsed(record: bytes, where: str, keys: Keys) -> tuple[bytes, int | None, str]:
  """Parses a record; returns its encoded image, label from 0 on, and class name.

  The label is None if the class only has a name.
  """
  try:
    features = tf.train.Example.FromString(record).features.feature
  except DecodeError as error:
    raise UsageError(f"{where} is not a tf.train.Example; use shards in ImageNet's layout, or "
                     "those of replicator convert") from error
  known = sorted(features)
  content = features[keys.image].bytes_list.value
  if len(content) != 1:
    raise UsageError(f"{where} has no {keys.image}, but {', '.join(known)}; set TFRecords.image "
                     "to the key of the images")
  if keys.label is None:
    return content[0], 0, "all"
  numbers, words = (features[keys.label].int64_list.value, features[keys.label].bytes_list.value)
  if len(words) == 1:
    return content[0], None, words[0].decode(errors="backslashreplace")
  if len(numbers) != 1:
    raise UsageError(f"{where} has no {keys.label} of one number or name, but {', '.join(known)}; "
                     "set TFRecords.label to the key of the labels, or None for images of one "
                     "class")
  if numbers[0] < keys.first:
    raise UsageError(f"{where} has the label {numbers[0]}, but "
                     + ("ImageNet's classes are numbered from 1; write the shards again so"
                        if keys.first else "classes are numbered from 0"))
  if numbers[0] >= labels_lib.MOST:
    raise UsageError(f"{where} has the {keys.label} {numbers[0]}; labels are class numbers below "
                     f"{labels_lib.MOST:,}; set TFRecords.label to their key")
  place = _SYNSET if keys.first else _TEXT if keys.label == DEFAULT.label else ""
  names = features[place].bytes_list.value
  return content[0], numbers[0] - keys.first, names[0].decode() if names else ""
