"""Converts images to TFRecord shards, which `TFRecords` reads.

    replicator convert SOURCE OUT --shards=N [--resolution=R] [--labels=FILE]
        [--skip_unreadable]

SOURCE is any data that `models.vision.sources.open_encoded` opens. Images keep their order. Files
are copied unchanged; images that are not in files, or are resized by `--resolution` as by an
`ImageFolder`, become PNG files. With `--skip_unreadable`, images that cannot be decoded are left
out and logged. The same images give the same files, byte for byte. A killed conversion continues if
the command is run again.
"""

import argparse
import contextlib
import fcntl
import functools
import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from models.vision.images.decode import Shape, decode, set_pixel_limit
from models.vision.images.encoded_images import EncodedImages
from models.vision.images.thread_map import Shown, map_in_threads
from models.vision.images.write import png
from models.vision.shards import index as shard_index
from models.vision.shards import sharded_images
from models.vision.sources import FORMS, open_encoded
from replicator import UsageError
from replicator.configuration import operative
from replicator.console.command import Parser, status_of
from replicator.console.formatting import format_bar
from replicator.console.status import Status
from replicator.errors import first_line
from replicator.training.workdir.places import refuse_url

import numpy as np
from absl import logging

_TRIAL = (64, 64, 3)  # To test decoding of an image; large JPEG files are decoded at a fraction.


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line `argv` (default: this process's); returns the exit status."""
  return status_of(lambda words: _run(_parse(words)), argv)


def _parse(words: Sequence[str]) -> argparse.Namespace:
  parser = Parser(description="Converts images to TFRecord shards.")
  parser.add_argument("source", metavar="SOURCE", help=FORMS)
  parser.add_argument("out", metavar="OUT", help="a new folder")
  parser.add_argument("--shards", type=int, required=True, metavar="N", help="how many files")
  parser.add_argument("--resolution", type=int, metavar="R",
                      help="crop and resize to R x R pixels; by default files are copied")
  parser.add_argument("--labels", metavar="FILE",
                      help="the CSV or JSON file of labels in a folder of images; by default its "
                           "dataset.json or, without one, its sub-folders")
  parser.add_argument("--skip_unreadable", action="store_true",
                      help="skip images that cannot be decoded, and list them")
  parser.add_argument("--gin_param", action="append", default=[], metavar='"a.b = 1"',
                      help="a setting of SOURCE, such as Shapes.resolution = 64 or "
                           "HuggingFace.label = 'breed'")
  parser.add_argument("--debug", action="store_true", help="show tracebacks")
  flags = parser.parse_args(words)
  if flags.resolution is not None and flags.resolution < 1:
    raise UsageError(f"--resolution={flags.resolution}: must be a positive number of pixels")
  return flags


def _run(flags: argparse.Namespace) -> int:
  if flags.gin_param:
    from replicator.app import config  # It imports Keras.
    config.parse([], flags.gin_param)
    set_pixel_limit()
  with Status() as status:
    status.doing(f"listing {flags.source}")
    source = open_encoded(flags.source, flags.labels, skips=flags.skip_unreadable)
    if flags.gin_param:
      operative.check_all_used()
    channels = source.image_shape[2] if source.image_shape else 3
    image_shape = flags.resolution and (flags.resolution, flags.resolution, channels)

    def shown(done: int, count: int) -> None:
      status.doing(format_bar("converting", done, count))

    written = convert(source, flags.out, flags.shards, image_shape, shown, flags.skip_unreadable)
    skipped = len(source.labels) - written
    status.note(f"{written:,} images of {len(source.class_names)} classes in {flags.out}"
                + f", without {skipped:,} that cannot be read" * bool(skipped) +
                f"; to train on them: TFRecords.path = '{flags.out}'")
  return 0


def convert(source: EncodedImages, out: str, count: int, image_shape: Shape | None = None,
            shown: Shown = lambda done, total: None, skips: bool = False) -> int:
  """Writes the images of a source to `count` shards in a folder `out`, or resumes doing so.

  Returns the number of images in the shards.

  Args:
    image_shape: (height, width, channels), to which images are converted as PNG. By default their
      files are copied.
    skips: whether to leave out images that cannot be decoded, and to log them.

  Raises:
    UsageError: `count` is invalid, `out` contains something else, another process converts to it,
      the source has changed since the conversion began, or an image cannot be read (or none can).
  """
  refuse_url(out, "OUT", "use a local folder")
  root, total = Path(out).expanduser(), len(source.labels)
  if not 1 <= count <= total:
    raise UsageError(f"--shards={count}: must be from 1 to {total:,}, one image per shard")
  resized = image_shape if image_shape != source.image_shape else None
  written_shape = image_shape or source.image_shape
  names = [sharded_images.shard_name(number, count) for number in range(count)]
  read = functools.partial(_content, source, image_shape=resized, skips=skips)
  with _begun(root, _digest(source, count, written_shape, skips and not resized)):
    for number, name in enumerate(names):
      first, last = total * number // count, total * (number + 1) // count
      if not shard_index.is_whole(root / name):
        sharded_images.write_shard(root / name, _examples(source, first, last, read, shown),
                                   source.class_names)
      shown(last, total)
    written = sum(shard_index.count(root / name) for name in names)
    if not written:
      raise UsageError(f"{source.path}: none of its {total:,} images can be read, such as "
                       f"{source.name(0)}")
    sharded_images.write_facts(root, sharded_images.Facts(
        source.class_names, written, written_shape, tuple(names)))
  return written


@contextlib.contextmanager
def _begun(root: Path, digest: str) -> Iterator[None]:
  """Makes and locks the folder, or checks that it contains part of the same conversion."""
  unfinished = root / sharded_images.UNFINISHED
  if root.exists() and not unfinished.exists() and (not root.is_dir() or any(root.iterdir())):
    what = "a finished conversion" if (root / sharded_images.INDEX).exists() else "something else"
    raise UsageError(f"{root}: holds {what}; choose a new folder")
  root.mkdir(parents=True, exist_ok=True)
  with unfinished.open("a+") as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # Released by the system, even in a crash.
    except BlockingIOError:
      raise UsageError(f"{root}: another process is converting images to this folder; wait for "
                       "it, or choose a new one") from None
    file.seek(0)
    if (before := file.read()) not in ("", digest):
      raise UsageError(f"{root}: holds part of a different conversion, or the images changed since "
                       "it began; remove the folder, or choose a new one")
    if not before:
      file.write(digest)
      file.flush()
      os.fsync(file.fileno())
    yield
    unfinished.unlink()


def _digest(source: EncodedImages, count: int, image_shape: Shape | None, tries: bool) -> str:
  """Returns the SHA-256 of everything that the shards depend on; for files, sizes and times."""
  digest = hashlib.sha256(repr((count, image_shape, source.class_names)).encode())
  if tries:  # It test-decodes copied files, which an earlier conversion may not have done.
    digest.update(b"tries")
  digest.update(np.asarray(source.labels, np.int32).tobytes())
  for file in source.files():
    found = os.stat(file)
    digest.update(repr((os.path.abspath(file), found.st_size, found.st_mtime_ns)).encode())
  return digest.hexdigest()


def _examples(source: EncodedImages, first: int, last: int, read: Callable[[int], bytes | None],
              shown: Shown) -> Iterator[tuple[bytes, int]]:
  """Yields contents and labels of images from `first` to `last`, without skipped ones."""
  contents = map_in_threads(read, range(first, last),
                            lambda done, _: shown(first + done, len(source.labels)))
  labels = source.labels[first:last].tolist()
  return ((content, label) for content, label in zip(contents, labels, strict=True)
          if content is not None)


def _content(source: EncodedImages, index: int, image_shape: Shape | None, skips: bool
             ) -> bytes | None:
  """Returns an image encoded for the shards; None to skip it."""
  try:
    content = source.read(index)
    if image_shape:
      return png(decode(content, image_shape))
    if skips:
      decode(content, _TRIAL)
    return content
  except UsageError:
    raise
  except Exception as error:
    name, reason = source.name(index), first_line(error)
    if not skips:
      raise UsageError(f"{name} cannot be read as an image ({reason}); remove it, and convert "
                       "again; to skip such images, use --skip_unreadable") from error
    logging.warning("convert skips %s, which cannot be read (%s)", name, reason)
    return None


if __name__ == "__main__":
  sys.exit(main())
