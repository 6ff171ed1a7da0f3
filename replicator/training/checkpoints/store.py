"""The files of checkpoints: where they are, which are good, and their values.

A checkpoint is a folder `step-NNNNNNNN` with a TensorFlow tensor bundle `variables`, whose keys are
the attribute paths of `step.variables.variables_of`, and a manifest (see `replicator.atomic`) with
the step, the state of the loop, the scalars that were logged at exactly this step, the names of the
networks' weights, the roles of the optimizers' variables, and the configured learning rates.
"""

import contextlib
import pathlib
import re
import sys
import tempfile
from collections.abc import Collection, Iterator

from replicator import atomic
from replicator.errors import UsageError

import numpy as np
import tensorflow as tf

FORMAT = 1  # The format of checkpoints; no other number can be read.
_BUNDLE = "variables"


def checked(folder: pathlib.Path) -> dict:
  """Checks the files of a checkpoint and returns its facts; raises the errors of `atomic.check`.

  Raises a UsageError if it has a different format.
  """
  facts = atomic.check(folder)
  if facts.get("format") != FORMAT:
    raise UsageError(f"{folder}: has the format {facts.get('format')}, but this version reads "
                     f"{FORMAT}; start again in another --workdir")
  return facts


def read(folder: pathlib.Path, newest: int | None = None) -> dict[str, np.ndarray]:
  """Reads the values of the newest good checkpoint in `folder` up to step `newest`, by path.

  Values that are kept for each replica have the shape `[num_replicas, ...]`. Raises a UsageError if
  there is no checkpoint, or all checkpoints are corrupt.
  """
  return read_bundle(some_good(folder, newest)[0])


def steps_of(folder: pathlib.Path) -> list[int]:
  """Returns the steps of all checkpoints in `folder`, even corrupt ones, in ascending order."""
  return sorted(places(folder))


def places(folder: pathlib.Path) -> dict[int, pathlib.Path]:
  """Returns the folder of each checkpoint, by step."""
  return {int(match[1]): path for name, path in atomic.published(folder).items()
          if (match := re.fullmatch(r"step-(\d{8,})", name))}


def folder_of(folder: pathlib.Path, step: int) -> pathlib.Path:
  """Returns the folder for the checkpoint of a step."""
  return folder / f"step-{step:08d}"


def newest_good(folder: pathlib.Path, newest: int | None = None, due_only: bool = False
                ) -> tuple[pathlib.Path, dict] | None:
  """Finds the newest checkpoint that is not corrupt, with its facts; None if there is none.

  Skips those above step `newest` and, with `due_only`, those that an uninterrupted run would not
  have. Raises a UsageError if all are corrupt.
  """
  corrupt = []
  for step, found in sorted(places(folder).items(), reverse=True):
    if newest is not None and step > newest:
      continue
    try:
      facts = checked(found)
    except (atomic.Corrupt, OSError) as error:
      if not found.exists():  # Its run has just removed it, because it has newer ones.
        return newest_good(folder, newest, due_only)
      corrupt.append(f"{found} is corrupt ({error})")
      continue
    if due_only and not facts.get("due", True):
      continue
    for line in corrupt:
      print(f"{line}; using the checkpoint of step {step} instead", file=sys.stderr, flush=True)
    return found, facts
  if corrupt:
    raise UsageError(f"{corrupt[0]}, and no earlier checkpoint is good; restore a good one, or "
                     "start again in another --workdir")
  return None


def some_good(folder: pathlib.Path, newest: int | None = None) -> tuple[pathlib.Path, dict]:
  """Returns `newest_good`, or raises a UsageError if there is no checkpoint."""
  if found := newest_good(folder, newest):
    return found
  raise UsageError(f"{folder}: has no checkpoint")


def write_bundle(folder: pathlib.Path, values: dict[str, np.ndarray]) -> None:
  """Writes the values of a checkpoint, by path."""
  if values:  # A step may have no variables, but a bundle must not be empty.
    with tf.device("/cpu:0"):
      tf.raw_ops.SaveV2(prefix=str(folder / _BUNDLE), tensor_names=list(values),
                        shape_and_slices=[""] * len(values), tensors=list(values.values()))


def read_bundle(folder: pathlib.Path, paths: Collection[str] | None = None
                ) -> dict[str, np.ndarray]:
  """Reads the values at some paths; None for all."""
  if not (folder / f"{_BUNDLE}.index").exists():
    return {}
  with _no_pattern(folder) as place:
    reader = tf.train.load_checkpoint(str(place / _BUNDLE))
    return {path: np.asarray(reader.get_tensor(path))
            for path in sorted(reader.get_variable_to_shape_map())
            if paths is None or path in paths}


@contextlib.contextmanager
def _no_pattern(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields a path of the folder without wildcards, which TensorFlow would treat as a pattern."""
  if not re.search(r"[][*?\\]", str(folder)):
    yield folder
    return
  with tempfile.TemporaryDirectory(prefix="replicator-") as place:
    link = pathlib.Path(place, "checkpoint")
    link.symlink_to(folder.resolve())
    yield link
