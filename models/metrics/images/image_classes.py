"""The classes of images in files: by a list of labels, or by the folders that they are in."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import IO

import numpy as np

from models.vision.images import labels


def folders(files: Sequence[str]) -> tuple[str, ...]:
  """The names of classes, sorted: the first folders in the paths of files.

  It is empty if a file is in no folder. They are the classes of an `ImageFolder`.
  """
  return () if any("/" not in file for file in files) else labels.from_folders(files)[1]


def of_files(name: str, files: Sequence[str],
             open_file: Callable[[str], IO[bytes]]) -> np.ndarray | None:
  """The class of each file, int [n]: that in `dataset.json`, or the number of its folder.

  None if there is neither.

  Args:
    name: what the user calls the folder or archive.
    files: paths in it.
    open_file: opens a path in it.

  Raises:
    UsageError: `dataset.json` has labels, but not one of each file.
  """
  content = None
  with contextlib.suppress(OSError, KeyError), open_file(labels.JSON) as file:
    content = file.read()
  listed = content and labels.from_json(content, files, f"{name}: {labels.JSON}")
  if listed:
    return listed[0]
  return labels.from_folders(files)[0] if folders(files) else None


def of_arrays(arrays: Mapping[str, np.ndarray], count: int) -> np.ndarray | None:
  """The only array of `count` whole numbers among those of an NPZ, if there is one."""
  found = [array for array in arrays.values()
           if array.shape == (count,) and array.dtype.kind in "iu"]
  return found[0] if len(found) == 1 else None
