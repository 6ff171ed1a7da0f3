"""A look at every image: its class, its size, whether it can be read, and copies of it."""

import collections
import dataclasses
import functools
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from models.vision.images.decode import Original, opened, upright_rgb
from models.vision.images.encoded_images import EncodedImages
from models.vision.images.thread_map import Shown, map_in_threads
from replicator import UsageError
from replicator.console.formatting import listed
from replicator.errors import first_line

import numpy as np

_SEED = 5   # Fixed, so that the same data makes the same page.


class Concern(NamedTuple):
  """A line about something that may be wrong; a `bad` one is hardly ever intended."""

  kind: Literal["bad", "warn"]
  text: str


@dataclasses.dataclass(frozen=True)
class Survey:
  """Facts about the n images that were looked at and can be read."""

  encoded: EncodedImages  # All images.
  indices: np.ndarray  # int [n], their numbers.
  sizes: np.ndarray  # int [n, 2], width and height, as a person sees them.
  digests: np.ndarray  # Bytes of equal length, [n], the same for equal contents.
  unreadable: dict[int, str]  # Why others cannot be read, by the number of the image.

  @property
  def counts(self) -> np.ndarray:
    """All images of each class, int [classes]."""
    return np.bincount(self.encoded.labels, minlength=len(self.encoded.class_names))

  def title(self, index: int) -> str:
    """The name of an image, such as the path of its file within the folder."""
    full = self.encoded.name(index)
    for root in (f"{Path(self.encoded.path).expanduser()}{os.sep}", f"{self.encoded.path}: "):
      full = full.removeprefix(root)
    return full

  def titles(self, indices: Iterable[int]) -> str:
    """The names of the first of some images, and how many more there are."""
    return listed([self.title(index) for index in indices])

  def copies(self) -> list[list[int]]:
    """The numbers of the images of each group with equal contents."""
    groups = collections.defaultdict(list)
    for index, digest in zip(self.indices.tolist(), self.digests.tolist(), strict=True):
      groups[digest].append(index)
    return [group for group in groups.values() if len(group) > 1]


def examine(encoded: EncodedImages, most: int | None = None,
            shown: Shown | None = None) -> Survey:
  """Looks at the images, or at `most` that are drawn at random.

  `shown` is called with how many were looked at, and how many there are.

  Raises:
    UsageError: none can be read.
  """
  indices = np.arange(len(encoded.labels))
  if most is not None and most < len(indices):
    indices = np.sort(np.random.default_rng(_SEED).permutation(len(indices))[:most])
  found: dict[int, tuple[tuple[int, int], bytes]] = {}
  unreadable: dict[int, str] = {}
  looks = map_in_threads(functools.partial(_look, encoded), indices.tolist(), shown)
  for index, look in zip(indices.tolist(), looks, strict=True):
    if isinstance(look, str):
      unreadable[index] = look
    else:
      found[index] = look
  sizes, digests = zip(*found.values(), strict=True) if found else ((), ())
  survey = Survey(encoded, np.array(list(found), int), np.array(sizes), np.array(digests),
                  unreadable)
  if not found:
    index, reason = next(iter(unreadable.items()))
    raise UsageError(f"{encoded.path}: none of {len(indices):,} images can be read, such as "
                     f"{survey.title(index)} ({reason})")
  return survey


def _look(encoded: EncodedImages, index: int) -> tuple[tuple[int, int], bytes] | str:
  """The (width, height) of an image and the digest of its content; or why it cannot be read."""
  try:
    content = encoded.read(index)
    with opened(content) as image:
      height, width = Original(image).size
      image.draft(None, (64, 64))  # Large JPEG files are decoded fast, at a fraction.
      upright_rgb(image)
    return (width, height), hashlib.blake2b(content, digest_size=16).hexdigest().encode()
  except UsageError:
    raise
  except Exception as error:  # Pillow raises errors of many types for broken files.
    return first_line(error)


def concerns(survey: Survey, test: Survey | None = None) -> list[Concern]:
  """Lines about faults of the images to train on that break or mislead a training, the worst first.

  `test` has the images to test on, if the user has named some.
  """
  found = [*_faults(survey), *(_leaks(survey, test) if test else [])]
  return sorted(found, key=lambda concern: concern.kind)


def _faults(survey: Survey) -> Iterator[Concern]:
  names, labels = survey.encoded.class_names, survey.encoded.labels
  if survey.unreadable:
    reason = next(iter(survey.unreadable.values()))
    yield Concern("bad", f"{_count(survey.unreadable, 'image')} cannot be read: "
                         f"{survey.titles(survey.unreadable)} ({reason}). A training "
                         "stops there, unless on_error = 'skip'.")
  if empty := np.flatnonzero(survey.counts == 0).tolist():
    yield Concern("bad", f"{_count(empty, 'class', 'classes')} without any image: "
                         f"{listed([names[label] for label in empty])}.")
  copies = survey.copies()
  if crossing := [group for group in copies if len(set(labels[group])) > 1]:
    yield Concern("bad", f"{_count(crossing, 'image')} in two classes or more: copies with equal "
                         "content and different labels, such as "
                         f"{survey.titles(crossing[0])}.")
  if copies:
    number = sum(len(group) - 1 for group in copies)
    yield Concern("warn", f"{number:,} of {len(survey.indices):,} images are exact copies of "
                          f"another, such as {survey.titles(copies[0])}. Held-out images may "
                          "be among those trained on.")
  sizes = collections.Counter(map(tuple, survey.sizes.tolist()))
  if len(sizes) > 1:
    short, long = survey.sizes.min(1), survey.sizes.max(1)
    yield Concern("warn", f"{len(sizes):,} sizes, the shorter side from {short.min():,} to "
                          f"{short.max():,} px. A training gets center squares, without "
                          f"{100 * np.median(1 - short / long):.0f} % of the median image.")


def _leaks(survey: Survey, test: Survey) -> Iterator[Concern]:
  if shared := np.flatnonzero(np.isin(test.digests, survey.digests)).tolist():
    yield Concern("bad", f"{_count(shared, 'image')} of {test.encoded.path} to test on "
                         f"{'is' if len(shared) == 1 else 'are'} among those to train on: "
                         f"{test.titles(test.indices[shared].tolist())}.")
  if test.encoded.class_names != survey.encoded.class_names:
    yield Concern("bad", f"{test.encoded.path} has other classes: "
                         f"{listed(test.encoded.class_names)}. Its labels mean something else.")


def _count(things: Sequence | dict, one: str, many: str = "") -> str:
  return f"{len(things):,} {one if len(things) == 1 else many or f'{one}s'}"
