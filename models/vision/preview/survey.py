"""What there is: a look at every image, of which 117 bytes are kept."""

import collections
import dataclasses
from collections.abc import Callable

import numpy as np

from models.vision.preview import duplicates
from models.vision.preview.contents import THUMBNAIL, Contents, Look
from replicator import UsageError

_SEED = 5  # Fixed, so that the same data makes the same page.
ROW = np.dtype([("label", "i4"), ("width", "i4"), ("height", "i4"), ("num_bytes", "i8"),
                ("format", "S8"), ("colors", "u1"), ("digest", "V16"),
                ("thumbnail", "u1", THUMBNAIL)])
"""A `Look`, as it is kept."""

_AT_ONCE = 256     # Images between two calls of `shown`.
_LEAST_SIDE = 16   # Pixels; smaller images look alike though they are different.
_GRAY = 4          # Levels between the channels of a gray image; JPEG is not exact.
_ONE_COLOR = 3     # Levels between the darkest and the lightest part of an image of one color.


@dataclasses.dataclass(frozen=True)
class Survey:
  """What was seen of n images.

  Attributes:
    indices: int [n], the numbers of the images that can be read.
    rows: a structured array [n] with the fields of `Look`.
    num_examined: how many were looked at, with those that cannot be read.
    unreadable: the reasons why others cannot be read, by the number of the image.
    counts: int [classes], the images of each class.
    equal: the positions of the images of each group with equal contents, int [2 or more].
    similar: the positions of pairs that look the same, int [pairs, 2].
  """

  indices: np.ndarray
  rows: np.ndarray
  num_examined: int
  unreadable: dict[int, str]
  counts: np.ndarray
  equal: list[np.ndarray]
  similar: np.ndarray

  @property
  def short_sides(self) -> np.ndarray:
    """The lesser of width and height, int [n]."""
    return np.minimum(self.rows["width"], self.rows["height"])

  @property
  def cut_away(self) -> np.ndarray:
    """The share of each image's area that is outside of its center square, float [n]."""
    return 1 - self.short_sides / np.maximum(self.rows["width"], self.rows["height"])

  @property
  def is_gray(self) -> np.ndarray:
    """Whether an image has no colors, bool [n]."""
    return self.rows["colors"] <= _GRAY

  @property
  def is_one_color(self) -> np.ndarray:
    """Whether an image shows nothing, bool [n]."""
    return self.is_gray & (np.ptp(self.rows["thumbnail"], axis=(1, 2)) < _ONE_COLOR)

  @property
  def num_copies(self) -> int:
    """How many images would go if one of each group of equal ones stayed."""
    return sum(len(group) - 1 for group in self.equal)

  def formats(self) -> dict[str, int]:
    """How many files have each format; nothing for what is in no file."""
    counts = collections.Counter(self.rows["format"].tolist())
    return {name.decode(): count for name, count in counts.most_common() if name}

  def sizes(self) -> dict[tuple[int, int], int]:
    """How many images have each width and height, the most frequent first."""
    pairs = zip(self.rows["width"].tolist(), self.rows["height"].tolist(), strict=True)
    return dict(collections.Counter(pairs).most_common())

  def in_two_classes(self, positions: np.ndarray) -> bool:
    """Whether some images are not all of one class."""
    labels = self.rows["label"][positions]
    return bool((labels != labels[0]).any())


def examine(contents: Contents, most: int | None = None,
            shown: Callable[[int, int], None] = lambda done, count: None) -> Survey:
  """Looks at the images, or at `most` that are drawn at random.

  Args:
    contents: the images.
    most: how many to look at; by default all.
    shown: is called with how many were looked at, and how many there are.

  Raises:
    UsageError: none can be read.
  """
  indices = np.arange(contents.size)
  if most is not None and most < contents.size:
    indices = np.sort(np.random.default_rng(_SEED).permutation(contents.size)[:most])
  rows, unreadable = np.zeros(len(indices), ROW), {}
  for done, (index, look) in enumerate(zip(indices.tolist(), contents.looks(indices),
                                           strict=True)):
    if isinstance(look, Look):
      rows[done] = look
    else:
      unreadable[index] = look
    if not done % _AT_ONCE:
      shown(done, len(indices))
  if len(unreadable) == len(indices):
    index, reason = next(iter(unreadable.items()))
    raise UsageError(f"{contents.name}: none of {len(indices):,} images can be read, such as "
                     f"{contents.title(index)} ({reason})")
  is_read = ~np.isin(indices, list(unreadable))
  rows = rows[is_read]
  equal = duplicates.equal(rows["digest"])
  return Survey(indices[is_read], rows, len(indices), unreadable,
                np.bincount(contents.labels, minlength=len(contents.class_names)), equal,
                duplicates.similar(rows["thumbnail"], _comparable(rows, equal)))


def _comparable(rows: np.ndarray, equal: list[np.ndarray]) -> np.ndarray:
  """The positions of images that are worth comparing: not tiny, and one of each equal group."""
  is_worth = np.minimum(rows["width"], rows["height"]) >= _LEAST_SIDE
  for group in equal:
    is_worth[group[1:]] = False
  return np.flatnonzero(is_worth)
