"""A survey of all images: classes, sizes, unreadable images, and copies."""

import collections
import dataclasses
import functools
import hashlib
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from models.vision.files.listing import printable
from models.vision.images.decode import Original, opened, upright_rgb
from models.vision.images.encoded_images import EncodedImages
from models.vision.images.thread_map import Shown, map_in_threads
from replicator import UsageError
from replicator.console.formatting import listed
from replicator.errors import first_line

import numpy as np

_STOPS = "Training stops there, unless on_error = 'skip'"
_SEED = 5   # Fixed, so that the same data makes the same page.
_DARK = 64  # All levels of a nearly black image are lower; 14 of 16 bits end here.
_ENLARGED = 1.5  # Images that are enlarged this much lack detail to learn from.


class Concern(NamedTuple):
  """A warning about something that may be wrong; a `bad` one is hardly ever intended."""

  kind: Literal["bad", "warn"]
  text: str


@dataclasses.dataclass(frozen=True)
class Survey:
  """Facts about the n examined images that can be read."""

  encoded: EncodedImages  # All images.
  indices: np.ndarray  # int [n], their numbers.
  sizes: np.ndarray  # int [n, 2], width and height of the upright image.
  highest: np.ndarray  # int [n], the highest level of a channel.
  digests: np.ndarray  # Bytes of equal length, [n], the same for equal contents.
  unreadable: dict[int, str]  # Why others cannot be read, by image number.

  @property
  def counts(self) -> np.ndarray:
    """The number of images of each class, int [classes]."""
    return np.bincount(self.encoded.labels, minlength=len(self.encoded.class_names))

  def title(self, index: int) -> str:
    """Returns the name of an image, such as the path of its file within the folder."""
    full = self.encoded.name(index)
    for root in (f"{Path(self.encoded.path).expanduser()}{os.sep}", f"{self.encoded.path}: "):
      full = full.removeprefix(printable(root))
    return full

  def titles(self, indices: Iterable[int]) -> str:
    """Lists the names of some images; if there are many, the first and how many more."""
    return listed([self.title(index) for index in indices])

  def copies(self) -> list[list[int]]:
    """Returns groups of images with equal contents, as image numbers."""
    groups = collections.defaultdict(list)
    for index, digest in zip(self.indices.tolist(), self.digests.tolist(), strict=True):
      groups[digest].append(index)
    return [group for group in groups.values() if len(group) > 1]


def examine(encoded: EncodedImages, most: int | None = None,
            shown: Shown | None = None) -> Survey:
  """Examines all images, or at most `most` of them, drawn at random.

  `shown` is called with the numbers of examined and of all images.

  Raises:
    UsageError: none can be read.
  """
  indices = np.arange(len(encoded.labels))
  if most is not None and most < len(indices):
    indices = np.sort(np.random.default_rng(_SEED).permutation(len(indices))[:most])
  found: dict[int, tuple[tuple[int, int], int, bytes]] = {}
  unreadable: dict[int, str] = {}
  looks = map_in_threads(functools.partial(_look, encoded), indices.tolist(), shown)
  for index, look in zip(indices.tolist(), looks, strict=True):
    if isinstance(look, str):
      unreadable[index] = look
    else:
      found[index] = look
  sizes, highest, digests = zip(*found.values(), strict=True) if found else ((), (), ())
  survey = Survey(encoded, np.array(list(found), int), np.array(sizes), np.array(highest),
                  np.array(digests), unreadable)
  if not found:
    index, reason = next(iter(unreadable.items()))
    raise UsageError(f"{encoded.path}: none of {len(indices):,} images can be read, such as "
                     f"{survey.title(index)} ({reason})")
  return survey


def _look(encoded: EncodedImages, index: int) -> tuple[tuple[int, int], int, bytes] | str:
  """Returns (width, height), highest level and content digest of an image.

  If it cannot be read, returns the reason.
  """
  try:
    content = encoded.read(index)
    with opened(content) as image:
      height, width = Original(image).size
      image.draft(None, (64, 64))  # Large JPEG files are decoded fast, at a fraction.
      highest = int(np.max(upright_rgb(image).getextrema()))
    digest = hashlib.blake2b(content, digest_size=16).hexdigest().encode()
    return (width, height), highest, digest
  except UsageError:
    raise
  except Exception as error:  # Pillow raises errors of many types for broken files.
    return first_line(error)


def concerns(survey: Survey, resolution: int, test: Survey | None = None,
             of_files: Iterable[Concern] = ()) -> list[Concern]:
  """Returns warnings about the training images that may break or mislead training, worst first.

  Training uses images of this `resolution`. `test` has the test images, if the user gave some.
  Warnings `of_files` come before equally bad ones.
  """
  found = [*of_files, *_faults(survey, resolution), *(_leaks(survey, test) if test else [])]
  return sorted(found, key=lambda concern: concern.kind)


def of_log(records: Iterable[logging.LogRecord]) -> list[Concern]:
  """Converts messages that were logged while listing files; errors become `bad`.

  Classes without images are left out, because they have a separate warning.
  """
  found = [(record.levelno, record.getMessage()) for record in records]
  return [Concern("bad", f"{text}. {_STOPS}.") if level >= logging.ERROR else
          Concern("warn", f"{text}.")
          for level, text in found if "classes without images" not in text]


def _faults(survey: Survey, resolution: int) -> Iterator[Concern]:
  names, labels = survey.encoded.class_names, survey.encoded.labels
  if survey.unreadable:
    reason = next(iter(survey.unreadable.values()))
    yield Concern("bad", f"{_count(survey.unreadable, 'image')} cannot be read: "
                         f"{survey.titles(survey.unreadable)} ({reason}). "
                         f"{_STOPS}.")
  if empty := np.flatnonzero(survey.counts == 0).tolist():
    yield Concern("bad", f"{_count(empty, 'class', 'classes')} without images: "
                         f"{listed([names[label] for label in empty])}.")
  copies = survey.copies()
  if crossing := [group for group in copies if len(set(labels[group])) > 1]:
    yield Concern("bad", f"{_count(crossing, 'image')} in two or more classes: copies with equal "
                         "content and different labels, such as "
                         f"{survey.titles(crossing[0])}.")
  if copies:
    number = sum(len(group) - 1 for group in copies)
    yield Concern("warn", f"{number:,} of {len(survey.indices):,} images are exact copies of "
                          f"another, such as {survey.titles(copies[0])}. Held-out images may "
                          "be among the training images.")
  if dark := survey.indices[survey.highest < _DARK].tolist():
    yield Concern("warn", f"{_count(dark, 'image')} {_be(dark)} nearly black, with no level above "
                          f"{survey.highest[survey.highest < _DARK].max()} of 255: "
                          f"{survey.titles(dark)}. Files of 16 bits keep their upper 8: multiply "
                          "10 bits by 64, 12 by 16, 14 by 4, and save them again.")
  sizes = collections.Counter(map(tuple, survey.sizes.tolist()))
  short, long = survey.sizes.min(1), survey.sizes.max(1)
  if len(small := survey.indices[short * _ENLARGED <= resolution]):
    yield Concern("warn", f"{_count(small, 'image')} {_be(small)} much smaller than the "
                          f"{resolution} px of training, which enlarges "
                          f"{'it' if len(small) == 1 else 'them'} up to "
                          f"{resolution / short.min():.1f} times: {survey.titles(small)}.")
  if len(sizes) > 1:
    yield Concern("warn", f"{len(sizes):,} sizes, the shorter side from {short.min():,} to "
                          f"{short.max():,} px. Training uses center squares, without "
                          f"{100 * np.median(1 - short / long):.0f}% of the median image.")


def _leaks(survey: Survey, test: Survey) -> Iterator[Concern]:
  if shared := np.flatnonzero(np.isin(test.digests, survey.digests)).tolist():
    yield Concern("bad", f"{_count(shared, 'test image')} of {test.encoded.path} "
                         f"{_be(shared)} among the training images: "
                         f"{test.titles(test.indices[shared].tolist())}.")
  if test.encoded.class_names != survey.encoded.class_names:
    yield Concern("bad", f"{test.encoded.path} has different classes: "
                         f"{listed(test.encoded.class_names)}. Its labels mean something else.")


def _count(things: Sequence | dict | np.ndarray, one: str, many: str = "") -> str:
  return f"{len(things):,} {one if len(things) == 1 else many or f'{one}s'}"


def _be(things: Sequence | np.ndarray) -> str:
  return "is" if len(things) == 1 else "are"
