"""Saves and restores checkpoints: all state that must survive a restart. For files, see `store`."""

import concurrent.futures
import contextlib
import pathlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

from replicator import atomic
from replicator.errors import RunFailed, UsageError
from replicator.step.variables import together_in, variables_of
from replicator.strategies.compiled_step import CompiledStep
from replicator.strategies.replicator import Replicator
from replicator.strategies.tracing import graphs, refusals
from replicator.strategies.tracing.trainable import Trainable
from replicator.training.checkpoints import partial
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
_BESIDE = "callbacks:"  # The prefix of the paths of callbacks' variables.


class Saver:
  """A saver of all variables of a step, its `trainable` flags, and the state of the loop.

  The training thread copies the values to the host, and a background thread writes them. In a
  cluster the chief writes, and every worker restores what the chief wrote.

  Args:
    folder: the folder of the checkpoints; all workers share it.
    step: the step object, whose attributes lead to the variables.
    replicator: the replicator that runs the step; None for a single process.
    retention: which checkpoints to keep; None for what gin configures.

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
    self._takes_beside = False  # Whether `add` was called.
    self._restored: tuple[pathlib.Path, dict, dict[str, np.ndarray]] | None = None
    self._slots = Slots(step, variables)  # With the configured learning rates.
    self._writes = replicator is None or replicator.worker_id == 0
    self._trainable = Trainable(step)
    self._names = names_of(step)
    self._thread = concurrent.futures.ThreadPoolExecutor(1, "checkpoints")
    self._saving: concurrent.futures.Future | None = None
    self.written: int | None = None  # The step from which a restart would resume, if known.

  def add(self, modules: Mapping[str, tf.Module]) -> None:
    """Saves additional modules with the step, by name; in a cluster, the chief's values.

    They get their values from the restored checkpoint, if any. Raises the errors of `restore`.
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
    """Saves the current values after `step` steps; returns before they are on disk.

    All workers must call it at the same step. It replaces an earlier checkpoint of this step, and
    removes those of later steps, which a rollback has made obsolete. `restore` returns the
    `loop_state`, which is JSON-able; `scalars` are those logged at this step. A checkpoint that is
    not `due` is saved only because the run stopped or ended; the last due one is kept as well.

    Raises:
      RunFailed: the previous checkpoint could not be written.
      UsageError: the replicas' copies of a variable, which must be equal, have diverged.
    """
    self.wait()
    snapshot = self._variables.take()
    if self._writes:
      facts = {"format": FORMAT, "step": step, "loop": loop_state,
               "by_replica": snapshot.by_replica, "trainable": self._trainable.changes(),
               "scalars": scalars or {}, "names": self._names, "due": due, **self._slots.facts()}
      self._saving = self._thread.submit(self._write, snapshot.values, facts)

  def wait(self) -> None:
    """Waits until the last checkpoint is on disk; raises a RunFailed if that failed."""
    saving, self._saving = self._saving, None
    if saving:
      saving.result()

  def check_written(self) -> None:
    """Raises the error of a finished write, like `wait`, but without waiting."""
    if self._saving and self._saving.done():
      self.wait()

  def _write(self, values: dict[str, np.ndarray], facts: dict) -> None:
    folder = folder_of(self._folder, facts["step"])
    try:
      # First remove those that a rollback left behind: after a crash, no run must resume from them.
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
      raise RunFailed(f"{folder}: could not be saved ({reason}); the earlier checkpoints are "
                      "intact") from error

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

  def restore(self, due_only: bool = False, step: int | None = None) -> dict | None:
    """Restores the checkpoint of a step, or the newest good one; reports corrupt ones on stderr.

    With `due_only`, restores the newest one that an uninterrupted run would also have. All workers
    must call it together. Returns the `loop_state` passed to `save`, with the "step"; None if there
    is no checkpoint.

    Raises:
      UsageError: there is no good checkpoint of that step, or all are corrupt; or it does not have
        the variables of the step, and a partial restore is not allowed.
    """
    self.wait()
    if (due_only or step is not None) and not self._writes:
      refresh(self._folder.parent)
    with contextlib.suppress(OSError):  # A read-only folder stays as it is.
      (atomic.clean if self._writes else atomic.repair)(self._folder)
    found = newest_good(self._folder, due_only=due_only) if step is None else self._found(step)
    if found is None:
      return None
    folder, facts = found
    values = read_bundle(folder)
    self._put(folder, facts, values, _REMEDY)
    self._restored = None if self._takes_beside else (folder, facts, values)
    self.written = facts["step"]
    return {**facts["loop"], "step": facts["step"]}

  def restore_step(self, step: int | Literal["best"] | None = None) -> dict:
    """Restores a checkpoint, found as in `read`; returns what `restore` does.

    Writes nothing to disk, so the run that saves here may still be running.

    Raises:
      UsageError: there is no such checkpoint, it is corrupt, or it does not have the variables of
        the step.
    """
    folder, facts, values = self.read(step)
    self._put(folder, facts, values, "the code or the bindings have changed since")
    return {**facts["loop"], "step": facts["step"]}

  def read(self, step: int | Literal["best"] | None = None, named: bool = False
           ) -> tuple[pathlib.Path, dict, dict[str, np.ndarray]]:
    """Returns the folder, the facts and the values of a checkpoint.

    The checkpoint is that of a step, the best one by `keep_best`, or the newest good one. If
    `named`, reads only values with a name. Raises a UsageError if there is no such checkpoint, or
    it is corrupt.
    """
    while True:
      folder, facts = self._found(step)
      try:
        return folder, facts, read_bundle(folder, facts["names"] if named else None)
      except (OSError, tf.errors.OpError):
        if folder.exists():
          raise
        # The run has removed it in the meantime, and saved a newer one.

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
      problem = "the best checkpoint is unknown: this run does not set Checkpoints.keep_best"
    else:
      problem = ("the best checkpoint is unknown: none was saved at a step that logged "
                 f"'{self.retention.keep_best}'")
    others = ", ".join(map(str, sorted(there)))
    remedy = f"choose one of the steps {others}" if others else "there are no others"
    raise UsageError(f"{self._folder}: {problem}; {remedy}")

  def _put(self, folder: pathlib.Path, facts: dict, values: dict[str, np.ndarray], remedy: str
           ) -> None:
    if not self._takes_beside:
      values = {path: value for path, value in values.items() if not path.startswith(_BESIDE)}
    self._put_into(self._variables, folder, facts, self._slots.placed(values, facts), remedy,
                   moved(facts["names"], self._names), together_in(self._step))
    self._trainable.restore(facts["trainable"])

  @staticmethod
  def _put_into(variables: Variables, folder: pathlib.Path, facts: dict,
                values: dict[str, np.ndarray], remedy: str,
                misplaced: Mapping[str, str] | None = None,
                groups: Collection[frozenset[str]] = ()) -> None:
    """Assigns the values that fit to the variables; reports the others, or raises a UsageError."""
    mismatches = {**variables.mismatches(Snapshot(values, facts["by_replica"])),
                  **(misplaced or {})}
    fitting = partial.fitting(folder, values, mismatches, remedy, groups)
    variables.put(Snapshot(fitting, facts["by_replica"]))

  def check_complete(self, compiled: CompiledStep) -> None:
    """Raises a UsageError if a restart would lose something that a step uses."""
    refusals.refuse_hidden_state(compiled.graph)
    if not (lost := self._variables.use(compiled.variables())):
      return
    name = lost[0].name.removesuffix(":0")
    if late := variables_of(self._step).keys() - self._own.keys():
      raise UsageError(
          f"the step creates variables in its first call, such as '{min(late)}' ({name}): a "
          "restart would lose them; create them in its constructor: start a network with "
          "keras.Input(shape) or build it there, and pass an optimizer to wrap_optimizer")
    raise UsageError(
        f"the step uses the variable '{name}'{graphs.first_use(compiled.graph, lost[0])}, and no "
        "attribute of the step refers to it: a restart would lose it; assign the object that holds "
        "it to an attribute")

  def check_copies(self, compiled: CompiledStep) -> None:
    """Raises a UsageError like `save`, naming a line of the step; all workers must call it."""
    self._variables.assigned_at = lambda variable: next(
        graphs.assignments(compiled.graph, variable), "")
    self._variables.check_copies()

  def changed_alike(self, by: str) -> contextlib.AbstractContextManager[None]:
    """Calls `Variables.changed_alike`; the `trainable` flags must agree too."""
    return self._variables.changed_alike(by, self._trainable.flags)
