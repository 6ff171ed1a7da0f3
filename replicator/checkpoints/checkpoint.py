"""Checkpoints: everything that must survive a restart, on the disk.

A checkpoint is a folder `step-NNNNNNNN` with a TensorFlow tensor bundle `variables`, whose keys are
the attribute paths of `step.variables.variables_of`, and a manifest (see `replicator.atomic`) with
the step, the state of the loop, the scalars that were logged at exactly this step, the names of the
networks' weights, the roles of the optimizers' variables, and the configured learning rates.
"""

import concurrent.futures
import contextlib
import pathlib
import re
import sys
from collections.abc import Callable, Collection, Iterable
from typing import Any, Literal

import gin
import numpy as np
import tensorflow as tf

from replicator import atomic
from replicator.checkpoints.names import moved, names_of
from replicator.checkpoints.retention import Retention
from replicator.checkpoints.slots import Slots
from replicator.checkpoints.snapshot import Snapshot, Variables
from replicator.errors import RunFailed, UsageError
from replicator.step.variables import variables_of
from replicator.strategies.replicator import Replicator
from replicator.tracing.trainable import Trainable
from replicator.workdir import remote

_BUNDLE = "variables"
_NAMED = 3  # Variables that an error names; there may be thousands.
_partial_allowed = False


def allow_partial_restore(allowed: bool) -> None:
  """Sets whether a checkpoint may be restored although only a part of it fits the step."""
  global _partial_allowed
  _partial_allowed = allowed


@gin.configurable(module="replicator", denylist=["folder", "step", "replicator"])
class Checkpoints:
  """Saves and restores all variables that a step holds, what is `trainable`, and the loop's state.

  The training thread copies the values to the host, and another thread writes them. In a cluster
  the chief writes, and every worker restores what the chief wrote.

  Args:
    folder: the folder of the checkpoints; all workers share it.
    step: the step object, whose attributes lead to the variables.
    replicator: the replicator that runs the step; None for a single process.
    keep_last: the number of newest checkpoints that are kept.
    keep_every: checkpoints at multiples of this step are kept too; 0 for none.
    keep_best: the name of a scalar, such as 'eval/reconstruction_error'. Among the checkpoints at
      whose step it was logged, the best one is kept too.
    best_is: 'min' or 'max': which value of that scalar is best.

  Raises:
    UsageError: a setting is invalid, or the step holds something that cannot be saved.
  """

  def __init__(self, folder: pathlib.Path, step: Any, replicator: Replicator | None = None,
               keep_last: int = 3, keep_every: int = 0, keep_best: str | None = None,
               best_is: Literal["min", "max"] = "min"):
    self.retention = Retention(keep_last, keep_every, keep_best, best_is)
    self._folder = folder
    self._step = step
    variables = variables_of(step)
    self._paths = variables.keys()
    self._variables = Variables(variables, replicator)
    self._slots = Slots(step, variables)  # With the learning rates as they are configured.
    self._writes = replicator is None or replicator.worker_id == 0
    self._trainable = Trainable(step)
    self._names = names_of(step)
    self._thread = concurrent.futures.ThreadPoolExecutor(1, "checkpoints")
    self._saving: concurrent.futures.Future | None = None
    self.written: int | None = None  # The step at which a restart would begin, once it is known.

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
      facts = {"step": step, "loop": loop_state, "by_replica": snapshot.by_replica,
               "trainable": self._trainable.changes(), "scalars": scalars or {},
               "names": self._names, "due": due, **self._slots.facts()}
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
    folder = _folder_of(self._folder, facts["step"])
    try:
      # First those that a rollback left behind: a crash in between must not resume from one.
      self._remove(step for step in steps_of(self._folder) if step > facts["step"])
      atomic.publish(folder, lambda temporary: _write_bundle(temporary, values), facts)
      steps = steps_of(self._folder)
      last_due = next((step for step in reversed(steps) if self._facts_at(step).get("due", True)),
                      None)
      self._remove(step for step in self.retention.obsolete(steps, self._scalars_at)
                   if step != last_due)
      if remote.push(self._folder.parent):
        self.written = facts["step"]
    except (OSError, tf.errors.OpError) as error:
      reason = atomic.disk_fault(error) or str(error).splitlines()[0]
      raise RunFailed(f"{folder}: could not be saved ({reason}); the checkpoints of earlier steps "
                      "are as they were") from error

  def _remove(self, steps: Iterable[int]) -> None:
    for step in steps:
      atomic.remove(_folder_of(self._folder, step))

  def _scalars_at(self, step: int) -> dict[str, float]:
    return self._facts_at(step).get("scalars", {})

  def _facts_at(self, step: int) -> dict:
    try:
      return atomic.facts_of(_folder_of(self._folder, step))
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
      remote.fetch(self._folder.parent)
    with contextlib.suppress(OSError):  # A read-only folder stays as it is.
      (atomic.clean if self._writes else atomic.repair)(self._folder)
    found = _newest_good(self._folder, due_only=due_only)
    if found is None:
      return None
    folder, facts = found
    self._put(folder, facts, _read_bundle(folder), "use the configuration it was saved with, "
              "another --workdir, or --allow_partial_restore")
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
        return folder, facts, _read_bundle(folder, facts.get("names", ()) if named else None)
      except (OSError, tf.errors.OpError):
        if folder.exists():
          raise
        # The run has removed it meanwhile, and saved a newer one.

  def _found(self, step: int | Literal["best"] | None) -> tuple[pathlib.Path, dict]:
    if step is None:
      return _some_good(self._folder)
    places = _places(self._folder)
    number = self.retention.best(sorted(places), self._scalars_at) if step == "best" else step
    if number in places:
      try:
        return places[number], atomic.check(places[number])
      except (atomic.Corrupt, OSError) as error:
        problem = f"{places.pop(number).name} is corrupt ({error})"
    elif step != "best":
      problem = f"has no checkpoint of step {step}"
    elif self.retention.keep_best is None:
      problem = "the best checkpoint is not known: this run has no Checkpoints.keep_best"
    else:
      problem = ("the best checkpoint is not known: none was saved at a step that logged "
                 f"'{self.retention.keep_best}'")
    others = ", ".join(map(str, sorted(places)))
    remedy = f"write one of the steps {others}" if others else "there is no other"
    raise UsageError(f"{self._folder}: {problem}; {remedy}")

  def _put(self, folder: pathlib.Path, facts: dict, values: dict[str, np.ndarray], remedy: str
           ) -> None:
    values = self._slots.placed(values, facts)
    mismatches = {**self._variables.mismatches(Snapshot(values, facts["by_replica"])),
                  **moved(facts.get("names", {}), self._names)}
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
    self._variables.put(Snapshot(fitting, facts["by_replica"]))
    self._trainable.restore(facts.get("trainable", {}))

  def refuse(self, problem: str, remedy: str) -> None:
    """Raises a UsageError about what was restored, or warns if a partial restore is allowed."""
    if not _partial_allowed:
      raise UsageError(f"{problem}; {remedy}")
    print(f"warning: --allow_partial_restore: {problem}", file=sys.stderr, flush=True)

  def check_complete(self, used: list) -> None:
    """Raises a UsageError if a restart would lose some of the variables that a step uses."""
    lost = [v.name for v in used if not self._variables.covers(v)]
    if lost:
      late = variables_of(self._step).keys() - self._paths
      if late:
        raise UsageError(
            f"the step makes variables in its first call, such as '{min(late)}' ({lost[0]}): a "
            "restart would lose them; make them in its constructor: begin a network with "
            "keras.Input(shape) or build it there, and give an optimizer to wrap_optimizer")
      raise UsageError(
          f"the step uses {len(lost)} variables that are not reached through its attributes, such "
          f"as '{lost[0]}': a restart would lose them; make the step a tf.Module and assign its "
          "networks and optimizers to attributes")

  def check_copies(self, assigned_at: Callable[[Any], str]) -> None:
    """Raises a UsageError if the replicas' copies of a variable have parted, as `save` does.

    All workers must call it after the same step. `assigned_at` returns ` at file:line` for a
    variable that the step assigns there, for this error and those of `save`.
    """
    self._variables.assigned_at = assigned_at
    self._variables.check_copies()


def read(folder: pathlib.Path, newest: int | None = None) -> dict[str, np.ndarray]:
  """The values of the newest good checkpoint in `folder` up to step `newest`, by path.

  Where each replica has a value of its own, their shape is `[num_replicas, ...]`. Raises a
  UsageError if there is no checkpoint, or all checkpoints are corrupt.
  """
  return _read_bundle(_some_good(folder, newest)[0])


def steps_of(folder: pathlib.Path) -> list[int]:
  """The steps of all checkpoints in `folder`, even corrupt ones, in ascending order."""
  return sorted(_places(folder))


def _places(folder: pathlib.Path) -> dict[int, pathlib.Path]:
  """Where the checkpoint of each step is."""
  return {int(match[1]): path for name, path in atomic.published(folder).items()
          if (match := re.fullmatch(r"step-(\d{8,})", name))}


def _folder_of(folder: pathlib.Path, step: int) -> pathlib.Path:
  return folder / f"step-{step:08d}"


def _newest_good(folder: pathlib.Path, newest: int | None = None, due_only: bool = False
                 ) -> tuple[pathlib.Path, dict] | None:
  corrupt = []
  for step, found in sorted(_places(folder).items(), reverse=True):
    if newest is not None and step > newest:
      continue
    try:
      facts = atomic.check(found)
    except (atomic.Corrupt, OSError) as error:
      if not found.exists():  # Its run has removed it meanwhile, because it has newer ones.
        return _newest_good(folder, newest, due_only)
      corrupt.append(f"{found} is corrupt ({error})")
      continue
    if due_only and not facts.get("due", True):
      continue
    for line in corrupt:
      print(f"{line}; using the checkpoint of step {step} instead", file=sys.stderr, flush=True)
    return found, facts
  if corrupt:
    raise UsageError(f"{corrupt[0]}, and no earlier checkpoint is good; put a good one back, or "
                     "start again in another --workdir")
  if (folder / "checkpoint").exists():
    raise UsageError(f"{folder}: the checkpoints are from another version of this program; start "
                     "again in another --workdir")
  return None


def _some_good(folder: pathlib.Path, newest: int | None = None) -> tuple[pathlib.Path, dict]:
  if found := _newest_good(folder, newest):
    return found
  raise UsageError(f"{folder}: holds no checkpoint")


def _write_bundle(folder: pathlib.Path, values: dict[str, np.ndarray]) -> None:
  if values:  # A step may have no variables, but a bundle must have some.
    with tf.device("/cpu:0"):
      tf.raw_ops.SaveV2(prefix=str(folder / _BUNDLE), tensor_names=list(values),
                        shape_and_slices=[""] * len(values), tensors=list(values.values()))


def _read_bundle(folder: pathlib.Path, paths: Collection[str] | None = None
                 ) -> dict[str, np.ndarray]:
  """The values at some paths; None for all."""
  if not (folder / f"{_BUNDLE}.index").exists():
    return {}
  reader = tf.train.load_checkpoint(str(folder / _BUNDLE))
  return {path: np.asarray(reader.get_tensor(path))
          for path in sorted(reader.get_variable_to_shape_map())
          if paths is None or path in paths}
