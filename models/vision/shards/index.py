"""The index of a shard, `SHARD.npz`: where each image is in the TFRecord file `SHARD`."""

import io
import threading
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from replicator import UsageError
from replicator.atomic import write_whole
from replicator.errors import first_line

import numpy as np
from absl import logging

ENTRY = np.dtype([("offset", "<i8"), ("length", "<i8"), ("crc32", "<u4"), ("label", "<i4")])
BEFORE, AFTER = 12, 4  # Bytes around the data of a TFRecord: length and checksums.

_ENDS = 1 << 16  # Bytes at each end of a shard that identify it.


def index_of(shard: Path) -> Path:
  """Returns the path of a shard's index, in the same folder."""
  return shard.with_name(shard.name.removesuffix(".tfrecord") + ".npz")


def entry(position: int, record: bytes, content: bytes, label: int) -> tuple[int, int, int, int]:
  """Makes the `ENTRY` of an encoded image, in a record at `position` of the shard."""
  return position + BEFORE + record.index(content), len(content), zlib.crc32(content), label


def write_index(index: Path, shard: Path, entries: list[tuple[int, int, int, int]],
                **more: np.ndarray) -> None:
  """Writes the index of a shard atomically; raises an OSError on failure."""
  content = io.BytesIO()
  arrays: dict[str, Any] = {"images": np.array(entries, ENTRY), "shard": _identity(shard), **more}
  np.savez(content, **arrays)
  write_whole(index, content.getvalue())


def is_whole(shard: Path) -> bool:
  """Returns whether a shard and its index are complete and match."""
  index = index_of(shard)
  return (shard.exists() and index.exists()
          and np.array_equal(_read(index)["shard"], _identity(shard)))


def count(shard: Path) -> int:
  """Returns the number of images in a shard, from its index."""
  return len(_read(index_of(shard))["images"])


def checked_index(shard: Path, index: Path, remedy: str, skips: bool = False
                  ) -> Mapping[str, np.ndarray]:
  """Reads an index, and checks that it matches its shard: `images`, of `ENTRY`, and more.

  Raises:
    UsageError: the index cannot be read, or the shard is missing, truncated or does not match; the
      message ends with `remedy`. With `skips`, a truncated shard is used without missing images.
  """
  if not shard.exists():
    raise UsageError(f"{shard}: no such file; {remedy}")
  content, found = _read(index), _identity(shard)
  size, images = content["shard"][0], content["images"]
  if found[0] < size:
    is_there = images["offset"] + images["length"] + AFTER <= found[0]
    what = (f"is truncated: it has {found[0]:,} of {size:,} bytes, without {(~is_there).sum():,} "
            f"of {len(images):,} images")
    if not skips:
      raise UsageError(f"{shard}: {what}; {remedy}; to skip them, set TFRecords.on_error = 'skip'")
    logging.warning("TFRecords skips images: %s: %s", shard, what)
    return {**content, "images": images[is_there]}
  if not np.array_equal(found, content["shard"]):
    raise UsageError(f"{shard}: {index.name} is the index of another file, or the file changed "
                     f"since it was indexed; {remedy}")
  return content


def read_image(shard: Path, image: np.void) -> bytes:
  """Reads the encoded image of an `ENTRY`; raises a ValueError if its checksum is wrong."""
  with shard.open("rb") as file:
    file.seek(int(image["offset"]))
    content = file.read(int(image["length"]))
  if zlib.crc32(content) != image["crc32"]:
    raise ValueError("its checksum does not match the index: the record is corrupt, or the file "
                     "changed since it was indexed")
  return content


# NumPy reads the header of an array with `ast`, which threads may not share in Python 3.11.
_loading = threading.Lock()


def _read(index: Path) -> dict[str, np.ndarray]:
  try:
    with _loading, np.load(index, allow_pickle=False) as content:
      arrays = dict(content)
    return {"images": arrays.pop("images"), "shard": arrays.pop("shard"), **arrays}
  except Exception as error:  # NumPy and zipfile raise errors of many types for broken files.
    raise UsageError(f"{index}: cannot be read ({first_line(error)}); remove it, and convert or "
                     "index again") from error


def _identity(path: Path) -> np.ndarray:
  """Returns the size of a file, and a checksum of both ends, int64 [2]."""
  size = path.stat().st_size
  with path.open("rb") as file:
    ends = file.read(_ENDS)
    file.seek(max(0, size - _ENDS))
    ends += file.read()
  return np.array([size, zlib.crc32(ends)], np.int64)
