"""The classes of images in files: by a list of labels, or by the folders that they are in."""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import IO

import numpy as np

from replicator.errors import UsageError

LIST = "dataset.json"  # In the layout of StyleGAN: {"labels": [["00000.png", 3], ...]}.


def folders(files: Sequence[str]) -> tuple[str, ...]:
  """The names of classes, sorted: the first folders in the paths of files.

  It is empty if a file is in no folder. They are the classes of an `ImageFolder`.
  """
  if any("/" not in file for file in files):
    return ()
  return tuple(sorted({file.partition("/")[0] for file in files}))


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
  listed = None
  with contextlib.suppress(OSError, KeyError), open_file(LIST) as file:
    listed = file.read()
  if listed is not None and (labels := _labels(name, listed)):
    missing = [file for file in files if not isinstance(labels.get(file), int)]
    if missing:
      raise UsageError(f"{name}: {LIST} has no class of {missing[0]}; write "
                       f'["{missing[0]}", 3] in its labels, or remove the list')
    return np.array([labels[file] for file in files])
  if names := folders(files):
    return np.array([names.index(file.partition("/")[0]) for file in files])
  return None


def of_arrays(arrays: Mapping[str, np.ndarray], count: int) -> np.ndarray | None:
  """The only array of `count` whole numbers among those of an NPZ, if there is one."""
  found = [array for array in arrays.values()
           if array.shape == (count,) and array.dtype.kind in "iu"]
  return found[0] if len(found) == 1 else None


def _labels(name: str, listed: bytes) -> dict[str, object]:
  try:
    return dict(json.loads(listed)["labels"] or [])
  except (ValueError, TypeError, KeyError) as error:
    raise UsageError(f"{name}: {LIST} has no list of labels ({type(error).__name__}: {error}); "
                     'write {"labels": [["00000.png", 3], ...]}, or remove it') from error
