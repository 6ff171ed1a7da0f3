"""What a run does about a step that fails, and what it leaves behind of it."""

import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tree

from replicator import random
from replicator.checkpoints import checkpoint
from replicator.errors import RunFailed
from replicator.step import collectives
from replicator.strategies.replicator import Replicator
from replicator.training.guard import Failure, Guard, History
from replicator.workdir.reader import as_json


class Failed(Exception):
  """Ends the course of a training; carries the failure and one line about what was written."""

  def __init__(self, failure: Failure, where: str):
    super().__init__(f"{failure}; {where}")
    self.failure = failure
    self.where = where


class Watch:
  """Has a guard look at every step of a run.

  Args:
    guard: says what fails, and what to do about it.
    replicator: runs the steps.
    workdir: of the run.
    facts: of the run: its `seed` and `global_batch_size`.

  Attributes:
    rollbacks: how often the run went back to a checkpoint.
    skipped: how many batches it has passed over therefore.
  """

  def __init__(self, guard: Guard, replicator: Replicator, workdir: pathlib.Path, facts: dict):
    self.rollbacks = 0
    self.skipped = 0
    self._guard = guard
    self._replicator = replicator
    self._workdir = workdir
    self._facts = facts

  def look(self, first_step: int, values: History, batches: Any,
           tell: Callable[[str], None]) -> None:
    """Looks at the steps of one call.

    Args:
      first_step: how many steps were made before.
      values: what the steps logged.
      batches: this worker's part of theirs, a nest of `[steps, n, ...]`; or None.
      tell: shows the user a line.

    Raises:
      Failed: the run cannot go on so.
    """
    failure = self._guard.failure_in(first_step + 1, values)
    if failure is None:
      return
    if self._guard.action == "warn":
      if line := self._guard.warning(failure):
        tell(line)
      return
    place = failure.step - 1 - first_step
    batch = None if batches is None else tree.map_structure(lambda x: x[place], batches)
    where = self._write(failure, batch)
    if self._replicator.num_pipelines > 1:  # The end of one may end those who still write.
      self._replicator.run(lambda: collectives.all_sum(tf.constant(1)))
    raise Failed(failure, where)

  def check_may_go_back(self, failed: Failed) -> None:
    """Raises a RunFailed, of the whole story, if the run is to be stopped."""
    if self._guard.action == "roll_back" and self.rollbacks < self._guard.max_rollbacks:
      return
    after = f" after {self.rollbacks} rollbacks" if self.rollbacks else ""
    raise RunFailed(f"{failed.failure}{after}; {failed.where}; {self.last_checkpoint()}")

  def last_checkpoint(self) -> str:
    """Words about where one can go on."""
    steps = checkpoint.steps_of(self._workdir / "checkpoints")
    if not steps:
      return "no checkpoint was saved before"
    hint = ", from which Guard.action = 'roll_back' would go on"
    return f"the last good checkpoint is of step {max(steps)}" + (
        "" if self._guard.action == "roll_back" else hint)

  def went_back(self, failed: Failed, step: int, rollbacks: int, skipped: int) -> str:
    """Goes on from a step with other draws and data; one line that says so.

    Args:
      failed: what ended the course before.
      step: how many steps remain.
      rollbacks: as counted in that course.
      skipped: as counted in that course.
    """
    most = self._guard.max_rollbacks
    # The batch after the one that failed comes next.
    self.restore({"rollbacks": rollbacks + 1, "skipped": skipped + failed.failure.step - step})
    self._guard.rolled_back()
    return f"{failed}; rolled back to step {step}, {self.rollbacks} of at most {most} times"

  def state(self) -> dict[str, int]:
    """What a checkpoint keeps."""
    return {"rollbacks": self.rollbacks, "skipped": self.skipped}

  def restore(self, state: dict[str, int]) -> None:
    """Goes on from a `state`. A function of the step must be compiled anew: it has its draws."""
    self.rollbacks, self.skipped = state["rollbacks"], state["skipped"]
    random.set_seed(self._facts["seed"], self.rollbacks)

  def _write(self, failure: Failure, batch: Any | None) -> str:
    """Writes `failures/step-NNNNNNNN/`; one line that says so, or why not.

    Every worker writes its part of the batch: its arrays are named after their places in the
    nest. The first worker writes the rest. After a rollback the name ends in `-rollback-1`.
    """
    folder = self._workdir / "failures" / (
        f"step-{failure.step:08d}" + (f"-rollback-{self.rollbacks}" if self.rollbacks else ""))
    worker, size = self._replicator.worker_id, self._facts["global_batch_size"]
    suffix = f"-worker-{worker}" if self._replicator.num_pipelines > 1 else ""
    position = (failure.step - 1 + self.skipped) * size
    told = {
        "step": failure.step, "message": str(failure),
        "offending": {name: as_json(value) for name, value in failure.offending.items()},
        "seed": self._facts["seed"], "rollbacks": self.rollbacks,
        "data_positions": None if batch is None else [position, position + size],
        "recent": {name: [as_json(float(value)) for value in series]
                   for name, series in failure.recent.items()}}
    try:
      folder.mkdir(parents=True, exist_ok=True)
      if batch is not None:
        np.savez(folder / f"batch{suffix}.npz", **_arrays(batch))  # type: ignore[arg-type]
      if worker == 0:
        (folder / "failure.json").write_text(json.dumps(told, indent=2, allow_nan=False) + "\n")
    except OSError as error:  # It shall not hide what went wrong first.
      return f"{folder} could not be written ({error.strerror})"
    return f"its {'' if batch is None else 'batch and '}numbers are in {folder}"


def _arrays(batch: Any) -> dict[str, np.ndarray]:
  """The arrays of a nest by name: `image`, `pair.0`, or `batch` for a single one."""
  return {".".join(map(str, place)) or "batch": np.asarray(x)
          for place, x in tree.flatten_with_path(batch)}
