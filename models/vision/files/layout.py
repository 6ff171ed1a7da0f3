"""Finds the classes of images in a folder or an archive: from folders, or from a list."""

import posixpath
from collections.abc import Collection, Sequence
from typing import NamedTuple

from models.vision.files import listing
from models.vision.images import labels as labels_lib
from replicator import UsageError

import numpy as np

JSON = "dataset.json"
"""The default name of the file of labels."""


def from_folders(names: Sequence[str]) -> labels_lib.Labels:
  """Makes labels from the first folders, such as `cats` in `cats/more/1.jpg`; see `from_words`."""
  return labels_lib.from_words(list(map(listing.class_of, names)))


class Layout(NamedTuple):
  """Files with one class each."""

  kept: list[int]  # Their numbers, in example order.
  labels: np.ndarray  # int32, one for each.
  class_names: tuple[str, ...]
  unlabeled: str = ""  # Why a list was not used, if all are of the class `all`.


def list_around(names: Sequence[str], others: Collection[str], path: str, needs_classes: bool
                ) -> str | None:
  """Finds the innermost `dataset.json`, among `others`, in a folder that contains all images.

  All paths are relative to the same folder, called `path` in errors.

  Raises:
    UsageError: files need classes, and there is only a list in a folder with some of the images.
  """
  folder = posixpath.commonpath([posixpath.dirname(name) for name in (min(names), max(names))])
  while True:
    found = posixpath.join(folder, JSON)
    if found in others:
      return found
    if not folder:
      break
    folder = posixpath.dirname(folder)
  for other in sorted(others) if needs_classes else ():
    part = posixpath.dirname(other)
    if posixpath.basename(other) == JSON and any(name.startswith(f"{part}/") for name in names):
      raise UsageError(f"{path}: {other} lists only part of the images, and some are outside "
                       f"{part}; use the path of {part}, or put all images in one list")
  return None


def beside(file: str, names: Sequence[str]) -> list[str]:
  """Returns file names relative to the folder of `file`, which contains them."""
  folder = posixpath.dirname(file)
  return [name[len(folder) + 1:] if folder else name for name in names]


def find(names: Sequence[str], listed: bytes | None, path: str, what: str, needs_classes: bool
         ) -> Layout:
  """Finds the files that have a class, and their labels; logs the others.

  Args:
    names: the names of n files with folders, relative to the list's folder if there is a list.
    listed: the content of `dataset.json`, with their labels, if any. Without it, the first folders
      are classes, and files are sorted by class.
    path: the location of the files, for errors.
    what: `dataset.json`, for errors.
    needs_classes: whether to leave out files outside of folders. If not, all files are of the class
      `all` if one is outside of folders, or if the list does not fit the files.

  Raises:
    UsageError: files need classes, and the list does not fit, or no file is in a folder.
  """
  everything, of_one = list(range(len(names))), labels_lib.of_one(len(names))
  if needs_classes and listed is None:
    return _in_classes(names, path)
  try:
    labeled = labels_lib.from_json(listed, names, what) if listed is not None else None
  except UsageError as error:
    if needs_classes:
      raise
    return Layout(everything, *of_one, unlabeled=str(error))
  if labeled is None and not needs_classes and all("/" in name for name in names):
    labeled = from_folders(names)
  return Layout(everything, *(labeled or of_one))


def _in_classes(names: Sequence[str], path: str) -> Layout:
  """Returns the files in class folders."""
  kept = [i for i, name in enumerate(names) if "/" in name]
  if not kept:
    raise UsageError(f"{path}: no image is in a class folder, such as cats/001.jpg and "
                     "dogs/001.jpg; images without classes can share one, such as all/")
  listing.report(path, {name: listing.IN_NO_CLASS for name in names if "/" not in name})
  labels, class_names = from_folders([names[i] for i in kept])
  order = np.argsort(labels, kind="stable")
  return Layout([kept[i] for i in order], labels[order], class_names)
