"""The classes of a data set: names, example counts, and labels with these frequencies.

A label is the number of a class in one data set. Classes of different data sets are matched by
name, so everything that compares or selects classes uses names.
"""

import collections
import dataclasses
import unicodedata
from collections.abc import Sequence

from replicator import UsageError
from replicator.console.formatting import listed
from replicator.errors import nearest

import numpy as np

SHOWN = 12
"""The maximum number of class names in a message."""


@dataclasses.dataclass(frozen=True)
class Classes:
  """Classes in label order; none by default.

  Attributes:
    names: the names of the classes, all different.
    counts: the number of examples of each class. Only a class that was named in advance may have
      none.
  """

  names: tuple[str, ...] = ()
  counts: tuple[int, ...] = ()

  @classmethod
  def of(cls, labels: np.ndarray, names: Sequence[str]) -> "Classes":
    """Returns classes with these names, see `unique`, and the counts of labels, int [n].

    Raises:
      UsageError: a label has no name.
    """
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(names):
      wrong = labels.min() if labels.min() < 0 else labels.max()
      raise UsageError(f"the label {wrong}: must be from 0 to {len(names) - 1}, since there are "
                       f"{len(names)} class names")
    return cls(unique(names), tuple(np.bincount(labels, minlength=len(names)).tolist()))

  @classmethod
  def numbered(cls, count: int) -> "Classes":
    """Returns classes of equal size, named after their labels."""
    return cls(tuple(map(str, range(count))), (1,) * count)

  def __len__(self) -> int:
    return len(self.names)

  @property
  def balanced(self) -> "Classes":
    """The same classes with equal frequencies; classes without examples keep none."""
    return Classes(self.names, tuple(min(count, 1) for count in self.counts))

  def in_shares(self, count: int) -> np.ndarray:
    """Returns labels with the frequencies of the classes, int32 [count]; zeros without classes.

    The first m of n labels are those of `in_shares(m)`. Example j of a class with the share s has
    the position (j + 1/2) / s. This divides any number of labels by Webster's method, and equal
    classes alternate.
    """
    if not any(self.counts):
      return np.zeros([count], np.int32)
    counts = np.array(self.counts, np.float64)
    shares = counts / counts.sum()
    # With k classes, at least n labels have a position up to n + k / 2.
    seats = np.where(counts > 0, np.floor((count + len(counts) / 2) * shares + 0.5) + 1, 0)
    ends = np.cumsum(seats.astype(np.int64))
    labels = np.repeat(np.arange(len(counts), dtype=np.int32), np.diff(ends, prepend=0))
    number = np.arange(ends[-1]) - (ends - np.diff(ends, prepend=0))[labels]
    places = (number + 0.5) * counts.sum() / counts[labels]
    return labels[np.argsort(places, kind="stable")[:count]]

  def spread(self, count: int) -> np.ndarray:
    """Returns ascending labels, int32 [count], spread evenly over the classes by frequency."""
    ends = np.cumsum(self.counts or (1,))
    return np.searchsorted(ends, (np.arange(count) + 0.5) * (ends[-1] / count), "right").astype(
        np.int32)

  def labels(self, words: Sequence[str]) -> list[int]:
    """Returns the labels of classes, given their names.

    If no class name is a number, a number is a label.

    Raises:
      UsageError: there is no such class.
    """
    known = self._by_name()
    takes_labels = not any(map(is_number, self.names))
    found = []
    for word in words:
      label = known.get(word, known.get(_key(word)))
      if label is None and takes_labels and is_number(word) and int(word) < len(self):
        label = int(word)
      if label is None:
        raise UsageError(f"class '{word}': the classes are {listed(self.names, SHOWN)}."
                         f"{nearest(word, self.names)}")
      found.append(label)
    return found

  def labels_in(self, other: "Classes") -> np.ndarray:
    """Returns these classes' labels in another set, int32 [len]; -1 for missing classes."""
    known = other._by_name()
    return np.array([known.get(name, known.get(_key(name), -1)) for name in self.names], np.int32)

  def with_counts_of(self, other: "Classes") -> "Classes | None":
    """Returns these classes with their counts in another set.

    Returns None if that set has no classes, or has examples of a class that is not among these.
    """
    counts, places = [0] * len(self), other.labels_in(self)
    for place, count in zip(places.tolist(), other.counts, strict=True):
      if place < 0 and count:
        return None
      counts[place] += count
    return Classes(self.names, tuple(counts)) if any(counts) else None

  def _by_name(self) -> dict[str, int]:
    exact = {name: label for label, name in enumerate(self.names)}
    return {**{_key(name): label for name, label in exact.items()}, **exact}  # For 1 and 01.


def is_number(name: str) -> bool:
  """Returns whether a name is a whole number, such as 7 or 007."""
  return name.isascii() and name.isdecimal()


def _key(name: str) -> str:
  """Returns the same key for two spellings of a class name."""
  return str(int(name)) if is_number(name) else unicodedata.normalize("NFC", name)


NO_CLASSES = Classes()


def unique(names: Sequence[str]) -> tuple[str, ...]:
  """Makes class names unique: ImageNet's two cranes are `crane` and `crane (2)`."""
  made: list[str] = []
  seen: collections.Counter = collections.Counter()
  for name in names:
    seen[name] += 1
    made.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
  return tuple(made)


def in_order(names: Sequence[str]) -> list[str]:
  """Sorts class names into label order: as numbers if all are numbers, otherwise as words."""
  if all(map(is_number, names)):
    return sorted(names, key=lambda name: (int(name), name))
  return sorted(names)
