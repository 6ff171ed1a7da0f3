"""Labels of image files: from their folders, or from a file in StyleGAN's layout."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from replicator.errors import UsageError

Labels = tuple[np.ndarray, tuple[str, ...]]
"""The label of each file, int32 [n], and the name of each class."""

JSON = "dataset.json"
"""What the file of the labels is called."""

_FORM = '{"labels": [["00000/img00000000.png", 6], ...]}'


def from_json(content: bytes, names: Sequence[str], what: str) -> Labels | None:
  """Labels in the layout of StyleGAN's data sets (`dataset_tool.py` of NVlabs/stylegan3).

  Args:
    content: `{"labels": [[name, class], ...]}` with classes from 0 on, or `{"labels": null}`, where
      files have no classes; then the result is None.
    names: of the files, n.
    what: the file of the labels, in words for errors.

  Raises:
    UsageError: the content has another form, or does not have exactly one label for each file.
  """
  try:
    rows = json.loads(content)["labels"]
    labels = None if rows is None else dict(rows)
  except (ValueError, KeyError, TypeError):
    raise UsageError(f"{what}: write {_FORM}, or null in place of the list") from None
  if labels is None:
    return None
  for name, label in labels.items():
    if not _is_class(label):
      raise UsageError(f"{what}: the label of {name} is {json.dumps(label)[:40]}; write the number "
                       "of its class, from 0 on")
  without = [name for name in names if name not in labels]
  if without:
    raise UsageError(f"{what}: has labels for {len(names) - len(without):,} of {len(names):,} "
                     f"images; {without[0]} has none. Add it, or remove the image")
  if unknown := labels.keys() - set(names):
    raise UsageError(f"{what}: has a label for {min(unknown)}, and there is no such image")
  found = np.array([labels[name] for name in names], np.int32)
  return found, tuple(str(number) for number in range(found.max() + 1))


def _is_class(label: Any) -> bool:
  return isinstance(label, int) and not isinstance(label, bool) and label >= 0


def from_folders(names: Sequence[str]) -> Labels:
  """The first folder of each name, such as `cats` of `cats/more/001.jpg`, in sorted order."""
  folders = [name.partition("/")[0] for name in names]
  classes, labels = np.unique(folders, return_inverse=True)
  return labels.astype(np.int32), tuple(map(str, classes))
