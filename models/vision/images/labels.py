"""Labels of images: from a CSV or JSON file, or from numbers, strings or booleans.

The labels of k classes are 0 to k - 1, in the order of the names. If classes are given by numbers,
those with images are the classes, and their names are these numbers.
"""

import collections
import csv
import io
import json
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from models.vision.images.classes import in_order, is_number, unique
from replicator import UsageError

import numpy as np
from absl import logging

_Label = TypeVar("_Label", bound=int | str)

Labels = tuple[np.ndarray, tuple[str, ...]]
"""The label of each file, int32 [n], and the name of each class."""

_FORM = '{"labels": [["00000/img00000000.png", 6], ...]}'
MOST = 1_000_000
"""The maximum number of classes; larger numbers are not class labels."""


def from_json(content: bytes, names: Sequence[str], what: str) -> Labels | None:
  """Parses labels in the format of StyleGAN's data sets (`dataset_tool.py` of NVlabs/stylegan3).

  Args:
    content: `{"labels": [[name, class], ...]}`, or `{"labels": null}` if files have no classes;
      then the result is None. A class is a number from 0 on, a one-hot vector, or a name. An
      optional `"classes": [name, ...]`, as in our own data sets, names the classes.
    names: the names of the n image files.
    what: the file of the labels, for errors.

  Raises:
    UsageError: the content has a different format, labels have different types, or a file does not
      have exactly one label.
  """
  try:
    read = json.loads(content)
    rows, class_names = read["labels"], list(map(str, read.get("classes") or ()))
    pairs = None if rows is None else [(str(name), label) for name, label in rows]
  except (ValueError, KeyError, TypeError, AttributeError):
    raise UsageError(f"{what}: must be {_FORM}, or have null instead of the list") from None
  if pairs is None:
    return None
  plain = _of_one_kind(pairs, class_names, what)
  labels = _of_each(plain, names, what)
  found = [labels[name] for name in names]
  if plain and isinstance(plain[0][1], str):
    return from_words(list(map(str, found)))
  return from_numbers(np.array(found), what, class_names)


def _of_one_kind(pairs: Sequence[tuple[str, Any]], class_names: Sequence[str], what: str
                 ) -> list[tuple[str, int | str]]:
  """Converts a JSON file's labels to numbers, or to names if `class_names` is empty.

  Raises a UsageError if a label is invalid, or has a different type than the first.
  """
  plain = []
  often = collections.Counter(class_names)
  places = {name: place for place, name in enumerate(class_names) if often[name] == 1}
  shown = lambda label: json.dumps(label)[:40]
  kind = lambda label: (type(label) in (int, float), len(label) if type(label) is list else 0)
  for name, label in pairs:
    if (found := _plain(label, len(class_names))) is None or (
        class_names and type(found) is str and found not in places):
      limit, of = (f", below {len(class_names)}", " of its classes") if class_names else ("", "")
      raise UsageError(f"{what}: the label of {name} is {shown(label)}; use a class number from 0 "
                       f"on{limit}, a one-hot vector, or a name{of}")
    first_name, first = pairs[0]
    if kind(label) != kind(first):
      raise UsageError(f"{what}: the label of {name} is {shown(label)}, but that of {first_name} "
                       f"is {shown(first)}; use labels of one kind")
    plain.append((name, places.get(found, found) if type(found) is str else found))
  return plain


def _plain(label: Any, count: int) -> int | str | None:
  """Converts a label in a JSON file of `count` classes (0: unknown) to a number or a name.

  Returns None if it is invalid.
  """
  if type(label) is list:
    is_one_hot = label.count(1) == 1 and label.count(0) == len(label) - 1
    return label.index(1) if is_one_hot and len(label) == (count or len(label)) else None
  if type(label) is str:
    return label or None
  is_whole = type(label) is int or (type(label) is float and label.is_integer())
  return int(label) if is_whole and 0 <= label < (count or MOST) else None


def from_csv(content: bytes, names: Sequence[str], what: str) -> Labels:
  """Parses labels in two columns: the name of a file, and its class.

  Classes are numbers from 0 on, or names, which are sorted into label order. A first line whose
  first word has no dot, such as `file,label`, is a header.

  Args:
    content: the content of the file, in UTF-8.
    names: the names of the n image files.
    what: the file of the labels, for errors.

  Raises:
    UsageError: a line has a different format, labels mix numbers and names, or a file does not have
      exactly one label.
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
    if row[1] in ("NaN", "nan"):  # As pandas writes missing values.
      raise UsageError(f"{what}:{number}: the label of {row[0]} is missing ({row[1]}); write its "
                       "class, or remove the line and the image")
  numbers = {number for number, (_, label) in rows.items()
             if label.isdecimal() and int(label) < MOST}
  if numbers and len(numbers) < len(rows):
    number = min(rows.keys() - numbers)
    name, label = rows[number]
    raise UsageError(f"{what}:{number}: the label of {name} is {label!r}, but other labels are "
                     f"numbers; use a number from 0 to {MOST - 1:,}, or names for all classes")
  labels = _of_each([(name, label) for name, label in rows.values()], names, what)
  if numbers:
    return from_numbers(np.array([int(labels[name]) for name in names]), what)
  return from_words([labels[name] for name in names])


def _of_each(pairs: Sequence[tuple[str, _Label]], names: Sequence[str], what: str
             ) -> dict[str, _Label]:
  """Returns the label of each file by name; raises a UsageError if there is not exactly one.

  Names in the list may be spelled differently, see `_form`.
  """
  labels, files, by_form = dict(pairs), {_form(name) for name in names}, dict[str, _Label]()
  if len(labels) < len(pairs):
    [(twice, _)] = collections.Counter(name for name, _ in pairs).most_common(1)
    raise UsageError(f"{what}: has more than one label for {twice}; keep one")
  for name, label in pairs:
    if by_form.setdefault(_form(name), label) != label and name not in names:
      raise UsageError(f"{what}: has more than one label for {name}, which is spelled in two ways; "
                       "keep one")
  without = [name for name in names if _form(name) not in by_form]
  if without:
    raise UsageError(f"{what}: has labels for {len(names) - len(without):,} of {len(names):,} "
                     f"images, but not for {without[0]} (the list begins with "
                     f"{next(iter(labels), 'nothing')}). Add it, or remove the image")
  if unknown := [name for name in labels if _form(name) not in files]:
    raise UsageError(f"{what}: has a label for {min(unknown)}, but there is no such image")
  return {name: labels.get(name, by_form[_form(name)]) for name in names}


def _form(name: str) -> str:
  """Normalizes the name of a file: composed Unicode, `/` between folders, no leading `./`."""
  return unicodedata.normalize("NFC", name.replace("\\", "/")).removeprefix("./")


def in_array(values: Iterable[Any]) -> np.ndarray:
  """Converts a library's labels to an array [n]: bytes to strings, mixed types to objects."""
  found = [value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
           for value in values]
  kinds = {type(value) for value in found}
  is_plain = len(kinds) == 1 and np.isscalar(found[0])
  if is_plain:
    return np.array(found)
  array = np.empty([len(found)], object)
  array[:] = found
  return array


def from_values(values: np.ndarray, what: str, names: Sequence[str] | None = None) -> Labels:
  """Makes labels from values [n] of an array or a library: integers, strings or booleans.

  Integers may be stored as floats. `names` are as for `from_numbers`.

  Raises:
    UsageError: a value is invalid or missing; the message begins with `what`.
  """
  kind, whole = values.dtype.kind, np.ones(len(values), bool)
  if kind in "US":
    return from_words((np.char.decode(values) if kind == "S" else values).tolist())
  if kind == "b":
    return from_words(list(map(str, values.tolist())))
  if kind == "f":
    whole = np.isfinite(values) & (np.floor(values) == values)
  if kind not in "iuf" or not whole.all() or not len(values):
    odd = values[int(whole.argmin())] if len(values) else "nothing"
    if kind == "O":  # Such as words, and None where one is missing.
      odd = next((value for value in values if not np.isscalar(value)), odd)
    raise UsageError(f"{what}: has {str(odd)[:40]!r}, which is not a class; labels are integers, "
                     "words or booleans, one for each image; use None if images have no classes")
  return from_numbers(values.astype(np.int64), what, names)


def from_words(words: Sequence[str]) -> Labels:
  """Makes labels from the names of their classes; see `classes.in_order`."""
  names = in_order(list(set(words)))
  numbers = {name: number for number, name in enumerate(names)}
  return np.array([numbers[word] for word in words], np.int32), tuple(names)


def from_numbers(numbers: np.ndarray, what: str, names: Sequence[str] | None = None) -> Labels:
  """Makes labels from class numbers, int [n].

  Without names, the classes are those that have images, and unused numbers between them are logged.
  With names, where number i is the i-th name, all of them are classes; `report_empty` logs those
  without images.

  Raises:
    UsageError: a number is negative, or too large for a class; the message begins with `what`.
  """
  most = len(names) if names else MOST
  for number in (numbers.min(), numbers.max()):
    if not 0 <= number < most:
      raise UsageError(f"{what}: has the label {number}; labels are class numbers from 0 to "
                       f"{most - 1:,}")
  if names:
    names = unique(names)
    ordered = in_order(names) if all(map(is_number, names)) else names
    places = {name: place for place, name in enumerate(ordered)}
    return np.array([places[name] for name in names], np.int32)[numbers], tuple(ordered)
  found, labels = np.unique(numbers, return_inverse=True)
  low, high = found[[0, -1]].tolist()
  if unused := high + 1 - low - len(found):
    first = next(i for i, each in enumerate(found.tolist(), low) if i != each)
    logging.warning("%s: %s of the labels from %s to %s have no images, such as %s: the other %s "
                    "are the classes", what, f"{unused:,}", f"{low:,}", f"{high:,}", first,
                    f"{len(found):,}")
  return labels.astype(np.int32).reshape(-1), tuple(map(str, found.tolist()))


def report_empty(labels: np.ndarray, class_names: tuple[str, ...], what: str) -> None:
  """Logs how many classes of `what` have no label in int [n], if any."""
  empty = np.flatnonzero(np.bincount(labels, minlength=len(class_names)) == 0)
  if len(empty):
    logging.warning("%s: classes without images: %s of %s, such as %s", what, f"{len(empty):,}",
                    f"{len(class_names):,}", class_names[empty[0]])


def of_one(count: int) -> Labels:
  """Returns labels of `count` files that are all of the class `all`."""
  return np.zeros(count, np.int32), ("all",)
