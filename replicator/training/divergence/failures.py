"""The files about diverged steps in `failures/` of a workdir, and how to return to such a step."""

import dataclasses
import functools
import json
import pathlib
import re
from typing import Any

from replicator import atomic
from replicator.console.formatting import format_number
from replicator.errors import UsageError
from replicator.training.checkpoints import store
from replicator.training.workdir import reader

import numpy as np
import tensorflow as tf
import tree

FOLDER = "failures"  # In a workdir.
FACTS = "failure.json"
_SHOWN = 6  # The number of last values of a scalar to show.


@dataclasses.dataclass(frozen=True)
class Failure:
  """A step that diverged.

  Attributes:
    folder: the folder of its files.
    step: the step, counted from 1.
    message: one line about it.
    offending: the scalars that diverged, by name.
    recent: all scalars of this step and of the steps before it, oldest first.
    rollbacks: how many times the run had been rolled back before.
    skipped: how many batches those rollbacks skipped.
  """

  folder: pathlib.Path
  step: int
  message: str
  offending: dict[str, float]
  recent: dict[str, list[float]]
  rollbacks: int
  skipped: int

  def recent_of_offending(self) -> dict[str, str]:
    """Formats the last values of the scalars that diverged."""
    return {name: ", ".join(map(format_number, self.recent[name][-_SHOWN:]))
            for name in self.offending if name in self.recent}


def name_of(step: int, rollbacks: int) -> str:
  """Returns the name of the folder of a step that diverged after `rollbacks` rollbacks."""
  return f"step-{step:08d}" + (f"-rollback-{rollbacks}" if rollbacks else "")


def found(run: pathlib.Path, step: int | None = None) -> Failure:
  """Returns the last diverged step of a run, or the failure of step `step`.

  Raises a UsageError if there is none.
  """
  all_of_run = sorted((_read(path) for path in run.glob(f"{FOLDER}/*/{FACTS}")),
                      key=lambda each: (each.rollbacks, each.step))
  if not all_of_run:
    raise UsageError(f"{run}: has no failed step; a guard keeps one when it stops a run or rolls "
                     "it back")
  chosen = [each for each in all_of_run if step in (None, each.step)]
  if not chosen:
    steps = sorted({each.step for each in all_of_run})
    raise UsageError(f"--step={step}: did not fail; choose one of the steps "
                     f"{', '.join(map(str, steps))}")
  return chosen[-1]


def _read(path: pathlib.Path) -> Failure:
  facts = reader.read_object(path)
  try:
    step, positions = facts["step"], facts["data_positions"]
    skipped = positions[0] // (positions[1] - positions[0]) - (step - 1) if positions else 0
    return Failure(
        path.parent, step, facts["message"],
        {name: float(value) for name, value in facts["offending"].items()},
        {name: list(map(float, values)) for name, values in facts["recent"].items()},
        facts["rollbacks"], skipped)
  except (KeyError, TypeError, ValueError) as error:
    raise UsageError(f"{path}: is corrupt ({error!r}); the batch next to it can be read "
                     "with numpy.load") from error


def write_facts(folder: pathlib.Path, facts: dict[str, Any]) -> None:
  """Writes the facts about a step, which are JSON, to an existing folder."""
  (folder / FACTS).write_text(json.dumps(facts, indent=2, allow_nan=False) + "\n")


def arrays_of(batch: Any) -> dict[str, np.ndarray]:
  """Returns the arrays of a nest by name: `image`, `pair.0`, or `batch` for a single one."""
  taken = {"file": "file_", "allow_pickle": "allow_pickle_"}  # These are arguments of `np.savez`.
  arrays = {}
  for place, x in tree.flatten_with_path(batch):
    name = ".".join(map(str, place)) or "batch"
    arrays[taken.get(name, name)] = np.asarray(x)
  return arrays


def write_batch(file: pathlib.Path, batch: Any) -> None:
  """Writes the arrays of a batch to an `.npz` file, with strings as serialized tensors."""
  arrays = {name: x if x.dtype != object else np.frombuffer(
      tf.io.serialize_tensor(x).numpy(), np.uint8) for name, x in arrays_of(batch).items()}
  np.savez(file, **arrays)  # type: ignore[arg-type]


def _read_batch(file: pathlib.Path, like: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Reads what `write_batch` wrote; only the dtypes of `like` are used."""
  with np.load(file) as loaded:
    return {name: x if name not in like or like[name].dtype != object else
            tf.io.parse_tensor(x.tobytes(), tf.string).numpy() for name, x in loaded.items()}


def batch_of(failure: Failure, like: Any) -> Any:
  """Returns the global batch of a failed step, in the structure of `like`; `like` if none was kept.

  Raises a UsageError if a worker's part is missing, or the structure of the data has changed.
  """
  files = sorted(failure.folder.glob("batch*.npz"),
                 key=lambda path: [int(number) for number in re.findall(r"\d+", path.name)])
  if not files:
    return like
  today = arrays_of(like)
  parts = [_read_batch(file, today) for file in files]
  if parts[0].keys() != today.keys():
    raise UsageError(f"{failure.folder}: its batch has {', '.join(parts[0])}, but the data now "
                     f"has {', '.join(today)}; restore the old data")
  arrays = {name: np.concatenate([part[name] for part in parts]) for name in today}
  for name, array in arrays.items():
    if len(array) != len(today[name]):
      raise UsageError(f"{failure.folder}: has {len(array)} of {len(today[name])} examples: each "
                       "worker wrote a batch-worker-N.npz; copy them all here")
  return tree.unflatten_as(like, list(arrays.values()))


def prepare(run: pathlib.Path, failure: Failure, workdir: pathlib.Path) -> int:
  """Prepares an empty `workdir` for a run that begins shortly before a failed step of `run`.

  Returns the step at which that run begins: that of the last good checkpoint before the failed
  step, or 0.
  Raises a UsageError if the run had been rolled back, and the checkpoint it returned to is gone.
  """
  for step, place in sorted(store.places(run / "checkpoints").items(), reverse=True):
    if step >= failure.step:
      continue
    try:
      facts = store.checked(place)
    except (atomic.Corrupt, OSError):
      continue
    rollbacks = facts["loop"]["rollbacks"]
    # A rollback returns to a checkpoint that was due, which has the count from before.
    if rollbacks == failure.rollbacks or (rollbacks < failure.rollbacks and facts.get("due", True)):
      loop = {**facts["loop"], "rollbacks": failure.rollbacks, "skipped": failure.skipped}
      atomic.publish(store.folder_of(workdir / "checkpoints", step),
                     functools.partial(_link, place), {**facts, "loop": loop})
      return step
  if failure.rollbacks:
    raise UsageError(f"{run}/checkpoints: the checkpoint from which the run reached step "
                     f"{failure.step} is gone; only the batch is left, in {failure.folder}")
  return 0


def _link(place: pathlib.Path, folder: pathlib.Path) -> None:
  for file in place.iterdir():
    if file.name != atomic.MANIFEST:
      (folder / file.name).symlink_to(file.resolve())
