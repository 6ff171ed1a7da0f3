"""Handles a diverged step: a warning, a rollback or a stop, and the files it writes."""

import pathlib
from collections.abc import Callable
from typing import Any

from replicator import random
from replicator.errors import RunFailed, UsageError
from replicator.strategies.replicator import Replicator
from replicator.training.checkpoints import store
from replicator.training.divergence import failures
from replicator.training.divergence.guard import Divergence, Guard, History
from replicator.training.inputs.inputs import InputContext
from replicator.training.workdir.reader import as_json

import tree


class Diverged(Exception):
  """A step after which training cannot continue; `where` says what was written about it."""

  def __init__(self, divergence: Divergence, where: str):
    super().__init__(f"{divergence}; {where}")
    self.divergence = divergence
    self.where = where


class Rollback:
  """The guard's check of every step of a run, with a count of rollbacks."""

  def __init__(self, guard: Guard, replicator: Replicator, workdir: pathlib.Path,
               context: InputContext):
    self.rollbacks = 0
    self.skipped = 0  # The number of batches that the rollbacks skipped.
    self._guard = guard
    self._replicator = replicator
    self._workdir = workdir
    self._context = context

  def check(self, first_step: int, values: History, batches: Any, warn: Callable[[str], None]
            ) -> None:
    """Raises a `Diverged` if a step of one call diverged, unless the guard only warns.

    The call ran after `first_step` steps, and returned `values`. `batches` is this worker's part of
    its batches: a nest `[n, ...]`, or `[steps, n, ...]` for several steps, or None.
    """
    divergence = self._guard.divergence_in(first_step + 1, values)
    if divergence is None:
      return
    if self._guard.action == "warn":
      if line := self._guard.warning(divergence):
        warn(line)
      return
    place = divergence.step - 1 - first_step
    if batches is not None and len(next(iter(values.values()))) > 1:
      batches = tree.map_structure(lambda x: x[place], batches)
    raise Diverged(divergence, self._write(divergence, batches))

  def check_may_roll_back(self, diverged: Diverged) -> None:
    """Raises a RunFailed with all details if the run must stop instead."""
    if self._guard.action == "roll_back" and self.rollbacks < self._guard.max_rollbacks:
      return
    after = f" after {self.rollbacks} rollbacks" if self.rollbacks else ""
    raise RunFailed(f"{diverged.divergence}{after}; {diverged.where}; {self.last_checkpoint()}")

  def last_checkpoint(self) -> str:
    """Describes the checkpoint from which the run can continue."""
    folder = self._workdir / "checkpoints"
    try:
      last = store.newest_good(folder)
    except UsageError as error:
      return str(error)
    if last is None:
      return "there is no earlier checkpoint"
    step = last[1]["step"]
    found = f"the last good checkpoint is from step {step}"
    if self._guard.action == "roll_back":
      return found
    due = (store.newest_good(folder, due_only=True) or last)[1]["step"]
    return found + (", from which Guard.action = 'roll_back' would continue" if due == step else
                    f"; Guard.action = 'roll_back' would continue from step {due}")

  def roll_back(self, diverged: Diverged, step: int, counted: dict[str, Any]) -> str:
    """Continues from a checkpoint with different draws and data; returns one line about it.

    `step` is the step of the checkpoint, and `counted` the `state` before it was restored.
    """
    most = self._guard.max_rollbacks
    # The batch after the one that diverged comes next.
    self._go_on(counted["rollbacks"] + 1, counted["skipped"] + diverged.divergence.step - step)
    return f"{diverged}; rolled back to step {step}, {self.rollbacks} of at most {most} times"

  def state(self) -> dict[str, Any]:
    """Returns the counts that a checkpoint keeps, as JSON."""
    return {"rollbacks": self.rollbacks, "skipped": self.skipped}

  def restore(self, state: dict[str, Any]) -> None:
    """Continues from a `state`; a compiled step contains the old draws, so it must be retraced."""
    self._guard.forget()
    self._go_on(state["rollbacks"], state["skipped"])

  def _go_on(self, rollbacks: int, skipped: int) -> None:
    self.rollbacks, self.skipped = rollbacks, skipped
    random.set_seed(self._context.seed, rollbacks)

  def _write(self, divergence: Divergence, batch: Any | None) -> str:
    """Writes `failures/step-NNNNNNNN/`; returns one line about where it is, or why it failed.

    Every worker writes its part of the batch; the first worker writes the rest.
    """
    folder = self._workdir / failures.FOLDER / failures.name_of(divergence.step, self.rollbacks)
    worker, size = self._replicator.worker_id, self._context.examples
    suffix = f"-worker-{worker}" if self._replicator.num_pipelines > 1 else ""
    position = (divergence.step - 1 + self.skipped) * size
    facts = {
        "step": divergence.step, "message": str(divergence),
        "offending": {name: as_json(value) for name, value in divergence.offending.items()},
        "seed": self._context.seed, "rollbacks": self.rollbacks,
        "data_positions": None if batch is None else [position, position + size],
        "recent": {name: [as_json(float(value)) for value in series]
                   for name, series in divergence.recent.items()}}
    try:
      folder.mkdir(parents=True, exist_ok=True)
      if batch is not None:
        failures.write_batch(folder / f"batch{suffix}.npz", batch)
      if worker == 0:
        failures.write_facts(folder, facts)
    except OSError as error:  # It must not hide the divergence.
      return f"{folder} could not be written ({error.strerror})"
    return f"its {'' if batch is None else 'batch and '}numbers are in {folder}"
