"""Checkpoints: everything that must survive a restart, on the disk; `store` says in which files."""

import concurrent.futures
import contextlib
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from replicator import atomic
from replicator.errors import RunFailed, UsageError
from replicator.step.variables import variables_of
from replicator.strategies.compiled_step import CompiledStep
from replicator.strategies.replicator import Replicator
from replicator.strategies.tracing import refusals
from replicator.strategies.tracing.trainable import Trainable
from replicator.training.checkpoints.names import moved, names_of
from replicator.training.checkpoints.retention import Checkpoints
from replicator.training.checkpoints.slots import Slots
from replicator.training.checkpoints.snapshot import Snapshot, Variables
from replicator.training.checkpoints.store import (
  FORMAT,
  checked,
  folder_of,
  newest_good,
  places,
  read_bundle,
  some_good,
  steps_of,
  write_bundle,
)
from replicator.training.workdir import lock
from replicator.training.workdir.places import refresh

import numpy as np
import tensorflow as tf

_REMEDY = ("use the configuration it was saved with, another --workdir, or "
           "--allow_partial_restore")
_BESIDE = "callbacks:"  # What the paths of the variables of callbacks begin with.
_NAMED = 3  # Variables that an error names; there may be thousands.
_partial_allowed = False


def allow_partial_restore(allowed: bool) -> None:
  """Sets whether a checkpoint may be restored although only a part of it fits the step."""
  global _partial_allowed
  _partial_allowed = allowed


class Saver:
  """Saves and restores all variables that a step holds, what is `trainable`, and the loop's state.

  The training thread copies the values to the host, and another thread writes them. In a cluster
  the chief writes, and every worker restores what the chief wrote.

  Args:
    folder: the folder of the checkpoints; all workers share it.
    step: the step object, whose attributes lead to the variables.
    replicator: the replicator that runs the step; None for a single process.
    retention: which checkpoints are kept; None for what gin says.

  Raises a UsageError if the step holds something that cannot be saved.
  """

  def __init__(self, folder: pathlib.Path, step: Any, replicator: Replicator | None = None,
               retention: Checkpoints | None = None):
    self.retention = retention or Checkpoints()
    self._folder = folder
    self._step = step
    self._replicator = replicator
    self._own = variables = variables_of(step)
    self._variables = Variables(variables, replicator)
    self._takes_beside = False  # Whether `add` has said what else there is.
    self._restored: tuple[pathlib.Path, dict, dict[str, np.ndarray]] | None = None
    self._slots = Slots(step, variables)  # With the learning rates as they are configured.
    self._writes = replicator is None or replicator.worker_id == 0
    self._trainable = Trainable(step)
    self._names = names_of(step)
    self._thread = concurrent.futures.ThreadPoolExecutor(1, "checkpoints")
    self._saving: concurrent.futures.Future | None = None
    self.written: int | None = None  # The step at which a restart would begin, once it is known.

  def add(self, modules: Mapping[str, tf.Module]) -> None:
    """Saves modules beside the step, by name; of a cluster the chief's values.

    They get the values of the checkpoint that was restored before. Raises what `restore` does.
    """
    beside = {f"{_BESIDE}{name}/{path}": variable for name, module in modules.items()
              for path, variable in variables_of(module).items()}
    self._variables = Variables({**self._own, **beside}, self._replicator, own=beside)
    self._takes_beside = True
    if self._restored:
      folder, facts, values = self._restored
      self._restored = None
      others = {path: value for path, value in values.items() if path.startswith(_BESIDE)}
      self._put_into(Variables(beside), folder, facts, others, _REMEDY)

  # ---- Saving -----------------------------------------------------------------------------------

  def save(self, step: int, loop_state: dict, scalars: dict[str, float] | None = None,
           due: bool = True) -> None:
    """Saves the current values after `step` steps; returns before they are on the disk.

    All workers must call it at the same step. It replaces an earlier checkpoint of this step and
    removes those of later steps, which a rollback has made obsolete. `restore` returns the
    `loop_state`, which is JSON-able; `scalars` are those logged at this step. One that is not `due`
    exists because the run was stopped or ended; the last one that is due is kept beside it.

    Raises:
      RunFailed: the previous checkpoint could not be written.
      UsageError: the replicas' copies of a variable, which must be equal, have parted.
    """
    self.wait()
    snapshot = self._variables.take()
    if self._writes:
      facts = {"format": FORMAT, "step": step, "loop": loop_state,
               "by_replica": snapshot.by_replica, "trainable": self._trainable.changes(),
               "scalars": scalars or {}, "names": self._names, "due": due, **self._slots.facts()}
      self._saving = self._thread.submit(self._write, snapshot.values, facts)

  def wait(self) -> None:
    """Waits until the last checkpoint is on the disk; raises a RunFailed if that failed."""
    saving, self._saving = self._saving, None
    if saving:
      saving.result()

  def check_written(self) -> None:
    """Raises the error of a finished write, as `wait` does, but does not wait."""
    if self._saving and self._saving.done():
      self.wait()

  def _write(self, values: dict[str, np.ndarray], facts: dict) -> None:
    folder = folder_of(self._folder, facts["step"])
    try:
      # First those that a rollback left behind: a crash in between must not resume from one.
      self._remove(step for step in steps_of(self._folder) if step > facts["step"])
      atomic.publish(folder, lambda temporary: write_bundle(temporary, values), facts)
      steps = steps_of(self._folder)
      last_due = next((step for step in reversed(steps) if self._facts_at(step).get("due", True)),
                      None)
      self._remove(step for step in self.retention.obsolete(steps, self._scalars_at)
                   if step != last_due)
      lock.confirm(self._folder.parent)
      self.written = facts["step"]
    except (OSError, tf.errors.OpError) as error:
      reason = atomic.disk_fault(error) or str(error).splitlines()[0]
      raise RunFailed(f"{folder}: could not be saved ({reason}); the checkpoints of earlier steps "
                      "are as they were") from error

  def _remove(self, steps: Iterable[int]) -> None:
    for step in steps:
      atomic.remove(folder_of(self._folder, step))

  def _scalars_at(self, step: int) -> dict[str, float]:
    return self._facts_at(step).get("scalars", {})

  def _facts_at(self, step: int) -> dict:
    try:
      return atomic.facts_of(folder_of(self._folder, step))
    except atomic.Corrupt:
      return {}

  # ---- Restoring --------------------------------------------------------------------------------

  def restore(self, due_only: bool = False) -> dict | None:
    """Restores the newest checkpoint that is not corrupt; reports corrupt ones on stderr.

    With `due_only` it is the newest that a run which was never stopped has, too. All workers must
    call it together. It returns the `loop_state` that was given to `save`, and the "step"; None if
    there is no checkpoint.

    Raises:
      UsageError: all checkpoints are corrupt, or the newest good one does not have the variables
        of the step and no partial restore is allowed.
    """
    self.wait()
    if due_only and not self._writes:
      refresh(self._folder.parent)
    with contextlib.suppress(OSError):  # A read-only folder stays as it is.
      (atomic.clean if self._writes else atomic.repair)(self._folder)
    found = newest_good(self._folder, due_only=due_only)
    if found is None:
      return None
    folder, facts = found
    values = read_bundle(folder)
    self._put(folder, facts, values, _REMEDY)
    self._restored = None if self._takes_beside else (folder, facts, values)
    self.written = facts["step"]
    return {**facts["loop"], "step": facts["step"]}

  def restore_step(self, step: int | Literal["best"] | None = None) -> dict:
    """Restores a checkpoint, which is found as in `read`; returns what `restore` does.

    It writes nothing to the disk, so the run that saves here may be under way.

    Raises:
      UsageError: there is no such checkpoint, it is corrupt, or it does not have the variables of
        the step.
    """
    folder, facts, values = self.read(step)
    self._put(folder, facts, values, "the code has changed since, or the bindings")
    return {**facts["loop"], "step": facts["step"]}

  def read(self, step: int | Literal["best"] | None = None, named: bool = False
           ) -> tuple[pathlib.Path, dict, dict[str, np.ndarray]]:
    """The folder, the facts and the values of a checkpoint.

    It is that of a step, the best one by `keep_best`, or the newest good one. If `named`, only the
    values that have a name are read. Raises a UsageError if there is no such checkpoint, or it is
    corrupt.
    """
    while True:
      folder, facts = self._found(step)
      try:
        return folder, facts, read_bundle(folder, facts["names"] if named else None)
      except (OSError, tf.errors.OpError):
        if folder.exists():
          raise
        # The run has removed it meanwhile, and saved a newer one.

  def _found(self, step: int | Literal["best"] | None) -> tuple[pathlib.Path, dict]:
    if step is None:
      return some_good(self._folder)
    there = places(self._folder)
    number = self.retention.best(sorted(there), self._scalars_at) if step == "best" else step
    if number in there:
      try:
        return there[number], checked(there[number])
      except (atomic.Corrupt, OSError) as error:
        problem = f"{there.pop(number).name} is corrupt ({error})"
    elif step != "best":
      problem = f"has no checkpoint of step {step}"
    elif self.retention.keep_best is None:
      problem = "the best checkpoint is not known: this run has no Checkpoints.keep_best"
    else:
      problem = ("the best checkpoint is not known: none was saved at a step that logged "
                 f"'{self.retention.keep_best}'")
    others = ", ".join(map(str, sorted(there)))
    remedy = f"write one of the steps {others}" if others else "there is no other"
    raise UsageError(f"{self._folder}: {problem}; {remedy}")

  def _put(self, folder: pathlib.Path, facts: dict, values: dict[str, np.ndarray], remedy: str
           ) -> None:
    if not self._takes_beside:
      values = {path: value for path, value in values.items() if not path.startswith(_BESIDE)}
    self._put_into(self._variables, folder, facts, self._slots.placed(values, facts), remedy,
                   moved(facts["names"], self._names))
    self._trainable.restore(facts["trainable"])

  @staticmethod
  def _put_into(variables: Variables, folder: pathlib.Path, facts: dict,
                values: dict[str, np.ndarray], remedy: str,
                misplaced: Mapping[str, str] | None = None) -> None:
    """Gives variables the values that fit; reports the others, or raises a UsageError."""
    mismatches = {**variables.mismatches(Snapshot(values, facts["by_replica"])),
                  **(misplaced or {})}
    if mismatches and not _partial_allowed:
      named = [f"'{path}' {what}" for path, what in mismatches.items()]
      if len(named) > _NAMED:
        named[_NAMED:] = [f"{len(named) - _NAMED} more"]
      raise UsageError(f"{folder}: {len(mismatches)} variables do not fit this step: "
                       f"{', '.join(named)}; {remedy}")
    for path, what in mismatches.items():
      print(f"warning: --allow_partial_restore: '{path}' {what}; it is not restored",
            file=sys.stderr, flush=True)
    fitting = {path: value for path, value in values.items() if path not in mismatches}
    variables.put(Snapshot(fitting, facts["by_replica"]))

  def refuse(self, problem: str, remedy: str) -> None:
    """Raises a UsageError about what was restored, or warns if a partial restore is allowed."""
    if not _partial_allowed:
      raise UsageError(f"{problem}; {remedy}")
    print(f"warning: --allow_partial_restore: {problem}", file=sys.stderr, flush=True)

  def check_complete(self, compiled: CompiledStep) -> None:
    """Raises a UsageError if a restart would lose something that a step uses."""
    refusals.refuse_hidden_state(compiled.graph)
    if not (lost := [v for v in compiled.variables() if not self._variables.covers(v)]):
      return
    name = lost[0].name.removesuffix(":0")
    if late := variables_of(self._step).keys() - self._own.keys():
      raise UsageError(
          f"the step makes variables in its first call, such as '{min(late)}' ({name}): a restart "
          "would lose them; make them in its constructor: begin a network with keras.Input(shape) "
          "or build it there, and give an optimizer to wrap_optimizer")
    raise UsageError(
        f"the step uses the variable '{name}'{compiled.used_at(lost[0])}, and no attribute "
        "of the step leads there: a restart would lose it; assign what holds it to an attribute")

  def check_copies(self, assigned_at: Callable[[Any], str]) -> None:
    """Raises a UsageError as `save` does, with what `assigned_at` says; all workers must call it.
    """
    self._variables.assigned_at = assigned_at
    self._variables.check_copies()

  def changed_alike(self, by: str) -> contextlib.AbstractContextManager[None]:
    """See `Variables.changed_alike`; what is `trainable` must be alike, too."""
    return self._variables.changed_alike(by, self._trainable.flags)
