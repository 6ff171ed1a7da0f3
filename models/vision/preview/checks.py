"""What may be wrong with images, one line for each thing."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from models.vision.preview.contents import Contents
from models.vision.preview.survey import Survey

_UNEQUAL = 10      # Times that the largest class is larger than the smallest.
_MOSTLY = 0.95     # The share of gray images from which on they nearly all are.
_MANY = 0.01       # The share of copies, or of images that are enlarged, that is worth a line.
_MUCH_CUT = 0.4    # The share of its area that the median image loses.
_NAMED = 3         # Things that a line names.


class Concern(NamedTuple):
  """A line about something that may be wrong; what is `bad` is hardly ever intended."""

  kind: Literal["bad", "warn"]
  text: str


def concerns(contents: Contents, survey: Survey, resolution: int) -> list[Concern]:
  """What may be wrong, the worst first.

  Args:
    contents: the images.
    survey: what was seen of them.
    resolution: the height and width of the examples that a training gets.
  """
  found = [*_files(contents, survey), *_classes(contents, survey), *_copies(contents, survey),
           *_looks(contents, survey, resolution)]
  return sorted(found, key=lambda concern: concern.kind)


def _files(contents: Contents, survey: Survey) -> Iterator[Concern]:
  if survey.unreadable:
    names = _few(list(survey.unreadable), contents.title)
    reason = next(iter(survey.unreadable.values()))
    yield Concern("bad", f"{_count(survey.unreadable, 'image')} cannot be read: {names} "
                         f"({reason}). A training stops there, unless on_error = 'skip'.")
  if contents.empty_folders:
    yield Concern("warn", f"{_count(contents.empty_folders, 'folder')} without any image: "
                          f"{_few(contents.empty_folders)}. It is no class, so labels differ from "
                          "those of a folder where it has one.")


def _classes(contents: Contents, survey: Survey) -> Iterator[Concern]:
  counts, names = survey.counts, contents.class_names
  filled = np.flatnonzero(counts)
  if empty := np.flatnonzero(counts == 0).tolist():
    yield Concern("bad", f"{_count(empty, 'class', 'classes')} without any image: "
                         f"{_few(empty, names.__getitem__)}.")
  if len(filled) == 1:
    yield Concern("warn", f"All labels are equal: every image is of class "
                          f"“{names[filled[0]]}”, so there is nothing to tell apart.")
  most, least = counts.argmax(), filled[counts[filled].argmin()]
  if counts[most] >= _UNEQUAL * counts[least]:
    yield Concern("warn", f"Very unequal classes: “{names[most]}” has {counts[most]:,} images, and "
                          f"“{names[least]}” {counts[least]:,}. A classifier may ignore the small "
                          "ones, and accuracy hides it.")


def _copies(contents: Contents, survey: Survey) -> Iterator[Concern]:
  if crossing := [group for group in survey.equal if survey.in_two_classes(group)]:
    yield Concern("bad", f"{_count(crossing, 'image')} in two classes or more: copies with equal "
                         f"content and different labels, such as "
                         f"{_pair(contents, survey, crossing[0])}.")
  if survey.num_copies >= _MANY * len(survey.rows):
    yield Concern("warn", f"Many duplicates: {survey.num_copies:,} of {len(survey.rows):,} images "
                          f"({percent(survey.num_copies / len(survey.rows))}) are copies of "
                          "another. Held-out images may be among those trained on.")
  if crossing := [pair for pair in survey.similar if survey.in_two_classes(pair)]:
    yield Concern("warn", f"{_count(crossing, 'pair')} of images look the same and have different "
                          f"labels, such as {_pair(contents, survey, crossing[0])}.")
  alike = len(np.unique(survey.similar))
  if alike >= _MANY * len(survey.rows):
    yield Concern("warn", f"Many near duplicates: {alike:,} images "
                          f"({percent(alike / len(survey.rows))}) look the same as another.")


def _looks(contents: Contents, survey: Survey, resolution: int) -> Iterator[Concern]:
  count = len(survey.rows)
  if blank := np.flatnonzero(survey.is_one_color).tolist():
    title = lambda position: contents.title(int(survey.indices[position]))
    yield Concern("warn", f"{_count(blank, 'image')} of a single color: {_few(blank, title)}.")
  if contents.channels == 3 and survey.is_gray.mean() >= _MOSTLY:
    which = "All" if survey.is_gray.all() else "Nearly all"
    yield Concern("warn", f"{which} images are gray: {survey.is_gray.sum():,} of {count:,}.")
  small = int((survey.short_sides < resolution).sum())
  if small >= _MANY * count:
    yield Concern("warn", f"{small:,} of {count:,} images ({percent(small / count)}) are smaller "
                          f"than {resolution} px, the least {survey.short_sides.min()} px: "
                          "scaled up, they are blurred.")
  cut = float(np.median(survey.cut_away))
  if cut >= _MUCH_CUT:
    yield Concern("warn", f"The center square leaves out {percent(cut)} of the area of the median "
                          "image. Look below at what is lost.")


def _pair(contents: Contents, survey: Survey, positions: np.ndarray) -> str:
  """Two images of different classes among some."""
  labels = survey.rows["label"][positions]
  pair = positions[0], positions[np.flatnonzero(labels != labels[0])[0]]
  return " and ".join(contents.title(int(survey.indices[position])) for position in pair)


def _few(things: Sequence, name: Callable = str) -> str:
  names = ", ".join(str(name(thing)) for thing in things[:_NAMED])
  return names + (f" and {len(things) - _NAMED:,} more" if len(things) > _NAMED else "")


def _count(things: Sequence | dict, one: str, many: str = "") -> str:
  return f"{len(things):,} {one if len(things) == 1 else many or f'{one}s'}"


def percent(share: float) -> str:
  """A share as a person reads it: `0.2 %`, `33 %`."""
  return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"
