"""Labels of image files: from their folders, or from a CSV or JSON file."""

import collections
import csv
import io
import json
from collections.abc import Sequence
from typing import TypeVar

from replicator import UsageError

import numpy as np
from absl import logging

_Label = TypeVar("_Label", int, str)

Labels = tuple[np.ndarray, tuple[str, ...]]
"""The label of each file, int32 [n], and the name of each class."""

JSON = "dataset.json"
"""The name of the file of labels, unless the user names another."""

_FORM = '{"labels": [["00000/img00000000.png", 6], ...]}'
_MOST = 1_000_000  # Classes. What is more is a number of something else.


def from_json(content: bytes, names: Sequence[str], what: str) -> Labels | None:
  """Labels in the layout of StyleGAN's data sets (`dataset_tool.py` of NVlabs/stylegan3).

  Args:
    content: `{"labels": [[name, class], ...]}` with classes from 0 on, or `{"labels": null}`, where
      files have no classes; then the result is None.
    names: of the image files, n.
    what: the file of the labels, in words for errors.

  Raises:
    UsageError: the content has another form, or does not have exactly one label for each file.
  """
  try:
    rows = json.loads(content)["labels"]
    pairs = None if rows is None else [(str(name), label) for name, label in rows]
  except (ValueError, KeyError, TypeError):
    raise UsageError(f"{what}: write {_FORM}, or null in place of the list") from None
  if pairs is None:
    return None
  for name, label in pairs:
    if type(label) is not int or not 0 <= label < _MOST:
      raise UsageError(f"{what}: the label of {name} is {json.dumps(label)[:40]}; write the number "
                       "of its class, from 0 on")
  labels = _of_each(pairs, names, what)
  return from_numbers(np.array([labels[name] for name in names]), what)


def from_csv(content: bytes, names: Sequence[str], what: str) -> Labels:
  """Labels in lines of two columns: the name of a file, and its class.

  Classes are numbers from 0 on, or names, whose sorted order is that of the labels. A first line
  whose first word has no dot, such as `file,label`, is a heading.

  Args:
    content: of the file, in UTF-8.
    names: of the image files, n.
    what: the file of the labels, in words for errors.

  Raises:
    UsageError: a line has another form, some labels are numbers and others names, or there is not
      exactly one label for each file.
  """
  try:
    lines = list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True))
  except (UnicodeDecodeError, csv.Error) as error:
    raise UsageError(f"{what}: is not a CSV file in UTF-8 ({error})") from error
  rows = {number: tuple(map(str.strip, line)) for number, line in enumerate(lines, 1) if line}
  if rows and "." not in next(iter(rows.values()))[0]:
    del rows[next(iter(rows))]
  for number, row in rows.items():
    if len(row) != 2 or not all(row):
      raise UsageError(f"{what}:{number}: write the name of a file, a comma and its class, such as "
                       "cats/001.jpg,cat")
  numbers = {number for number, (_, label) in rows.items()
             if label.isdecimal() and int(label) < _MOST}
  if numbers and len(numbers) < len(rows):
    number = min(rows.keys() - numbers)
    name, label = rows[number]
    raise UsageError(f"{what}:{number}: the label of {name} is {label!r}, and other labels are "
                     f"numbers; write a number from 0 to {_MOST - 1:,}, or names for all classes")
  labels = _of_each([(name, label) for name, label in rows.values()], names, what)
  if numbers:
    return from_numbers(np.array([int(labels[name]) for name in names]), what)
  classes, found = np.unique([labels[name] for name in names], return_inverse=True)
  return found.astype(np.int32), tuple(map(str, classes))


def _of_each(pairs: Sequence[tuple[str, _Label]], names: Sequence[str], what: str
             ) -> dict[str, _Label]:
  """The label of each file by name; raises a UsageError if there is not exactly one."""
  labels = dict(pairs)
  if len(labels) < len(pairs):
    [(twice, _)] = collections.Counter(name for name, _ in pairs).most_common(1)
    raise UsageError(f"{what}: has more than one label for {twice}; leave one")
  without = [name for name in names if name not in labels]
  if without:
    raise UsageError(f"{what}: has labels for {len(names) - len(without):,} of {len(names):,} "
                     f"images; {without[0]} has none. Add it, or remove the image")
  if unknown := labels.keys() - set(names):
    raise UsageError(f"{what}: has a label for {min(unknown)}, and there is no such image")
  return labels


def from_numbers(numbers: np.ndarray, what: str, names: Sequence[str] | None = None) -> Labels:
  """Labels that are numbers, int [n], which are the names of their classes unless some are given.

  Raises:
    UsageError: a number is negative, or too large to be that of a class; `what` has it.
  """
  for number in (numbers.min(), numbers.max()):
    if not 0 <= number < _MOST:
      raise UsageError(f"{what}: has the label {number}; labels are numbers of classes, from 0 to "
                       f"{_MOST - 1:,}")
  return numbers.astype(np.int32), tuple(names or map(str, range(numbers.max() + 1)))


def report_empty(labels: np.ndarray, class_names: tuple[str, ...], what: str) -> None:
  """Logs how many of the classes of `what` are those of no label, int [n], if there are some."""
  empty = np.flatnonzero(np.bincount(labels, minlength=len(class_names)) == 0)
  if len(empty):
    logging.warning("%s: classes without images: %s of %s, such as %s", what, f"{len(empty):,}",
                    f"{len(class_names):,}", class_names[empty[0]])


def from_folders(names: Sequence[str]) -> Labels:
  """The first folder of each name, such as `cats` of `cats/more/001.jpg`, in sorted order."""
  folders = [name.partition("/")[0] for name in names]
  classes, labels = np.unique(folders, return_inverse=True)
  return labels.astype(np.int32), tuple(map(str, classes))


def of_one(count: int) -> Labels:
  """The labels of so many files that are all of the class `all`."""
  return np.zeros(count, np.int32), ("all",)


def report_left_out(path: str, left: Sequence[str], what: str) -> None:
  """Logs how many files are left out; hidden ones, and lists of labels, are not worth a word."""
  shown = [name for name in left if not name.endswith((".csv", ".json"))
           and not any(part.startswith(".") for part in name.split("/"))]
  if shown:
    logging.warning("%s: %s: %s left out, such as %s", path, what, f"{len(shown):,}", shown[0])


def of_layout(names: Sequence[str], listed: bytes | None, path: str, what: str,
              needs_classes: bool) -> tuple[list[int], Labels]:
  """The numbers of the files that have a class, and the labels of these; the others are logged.

  Args:
    names: of the files, n, with their folders.
    listed: the content of `dataset.json`, which has their labels, if there is one. Without it, the
      first folders are classes.
    path: where the files are, in words for errors.
    what: `dataset.json`, in words for errors.
    needs_classes: whether files in no folder, and in folders whose names begin with a dot, are left
      out. Otherwise all files are of the class `all` if one is in no folder, or if the list does
      not fit the files.

  Raises:
    UsageError: files need classes, and the list does not fit, or no file is in a folder.
  """
  everything = list(range(len(names)))
  if needs_classes and listed is not None:
    return everything, from_json(listed, names, what) or of_one(len(names))
  if needs_classes:
    kept = [i for i in everything if "/" in names[i] and not names[i].startswith(".")]
    if not kept:
      raise UsageError(f"{path}: no image is in the folder of a class, such as cats/001.jpg and "
                       "dogs/001.jpg; images without classes may all be in one, such as all/")
    report_left_out(path, [names[i] for i in sorted({*everything} - {*kept})], "images in no class")
    return kept, from_folders([names[i] for i in kept])
  try:
    labels = from_json(listed, names, what) if listed is not None else None
  except UsageError:
    return everything, of_one(len(names))
  in_folders = all("/" in name for name in names)
  return everything, labels or (from_folders(names) if in_folders else of_one(len(names)))
