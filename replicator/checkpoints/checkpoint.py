"""What must survive a restart, and where it is kept.

A checkpoint is a folder `step-NNNNNNNN` with TensorFlow's tensor bundle `variables`, whose keys are
the attribute paths of `state.variables_of`, and a manifest (see `replicator.atomic`) with the
step, the state of the loop and the scalars that were logged at this very step.
"""

import concurrent.futures
import contextlib
import math
import pathlib
import re
import sys
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from replicator import atomic
from replicator.checkpoints.snapshot import Snapshot, Variables
from replicator.errors import RunFailed, UsageError, nearest
from replicator.step.variables import variables_of
from replicator.strategies.replicator import Replicator

_BUNDLE = "variables"
_NAMED = 3  # Variables that a message names; there may be thousands.
_partial_allowed = False


def allow_partial_restore(allowed: bool) -> None:
  """Whether a checkpoint that does not fit the step is restored as far as it does."""
  global _partial_allowed
  _partial_allowed = allowed


@gin.configurable(module="replicator", denylist=["folder", "step", "replicator"])
class Checkpoints:
  """Saves and restores everything that hangs off a step, and the loop's own state.

  The training thread copies the values to the host, another one writes them. In a cluster the
  chief writes; every worker restores from its folder.

  Args:
    folder: shared by all workers.
    step: the step object; its variables are those of its attributes.
    replicator: that runs the step; None for one process.
    keep_last: how many checkpoints stay.
    keep_every: those of every so many steps stay besides, for ever; 0 for none.
    keep_best: the name of a scalar, such as 'eval/reconstruction_error': of the checkpoints at
      whose step it was logged, the best one stays besides.
    best_is: 'min' or 'max', which value of it is best.

  Raises:
    UsageError: a setting cannot work, or the step holds something that cannot be saved.
  """

  def __init__(self, folder: pathlib.Path, step: Any, replicator: Replicator | None = None,
               keep_last: int = 3, keep_every: int = 0, keep_best: str | None = None,
               best_is: str = "min"):
    _check_settings(keep_last, keep_every, keep_best, best_is)
    self._folder = folder
    self._variables = Variables(variables_of(step), replicator)
    self._writes = replicator is None or replicator.worker_id == 0
    self._keep_last, self._keep_every = keep_last, keep_every
    self._keep_best, self._best_sign = keep_best, 1 if best_is == "min" else -1
    self._thread: concurrent.futures.ThreadPoolExecutor | None = None
    self._saving: concurrent.futures.Future | None = None

  # ---- Saving -----------------------------------------------------------------------------------

  def save(self, step: int, loop_state: dict, scalars: dict[str, float] | None = None) -> None:
    """Saves the step as it is now, under its number; returns before it is on the disk.

    All workers must call it at the same step. Replaces a checkpoint of that step, and later ones,
    which belong to a course of the run that was given up.

    Args:
      step: how many steps were done.
      loop_state: JSON-able; `restore` returns it.
      scalars: what was logged at this step.

    Raises:
      RunFailed: the one before could not be written.
    """
    self.wait()
    snapshot = self._variables.take()
    if self._writes:
      facts = {"step": step, "loop": loop_state, "by_replica": snapshot.by_replica,
               "scalars": scalars or {}}
      self._thread = self._thread or concurrent.futures.ThreadPoolExecutor(1, "checkpoints")
      self._saving = self._thread.submit(self._write, snapshot.values, facts)

  def wait(self) -> None:
    """Waits until what was saved is on the disk.

    Raises:
      RunFailed: it could not be written. Earlier checkpoints are as they were.
    """
    saving, self._saving = self._saving, None
    if saving:
      saving.result()

  def check_written(self) -> None:
    """Raises what `wait` would, if that is known already; does not wait."""
    if self._saving and self._saving.done():
      self.wait()

  def _write(self, values: dict[str, np.ndarray], facts: dict) -> None:
    folder = _folder_of(self._folder, facts["step"])
    try:
      atomic.publish(folder, lambda temporary: _write_bundle(temporary, values), facts)
      for step in self._superfluous(facts["step"]):
        atomic.remove(_folder_of(self._folder, step))
    except (OSError, tf.errors.OpError) as error:
      raise RunFailed(f"{folder}: could not be saved ({_reason(error)}); the checkpoints of "
                      "earlier steps are as they were") from error

  def _superfluous(self, newest: int) -> list[int]:
    steps = steps_of(self._folder)
    good = [step for step in steps if step <= newest]
    kept = {*good[-self._keep_last:], self._best(good)}
    if self._keep_every:
      kept |= {step for step in good if step % self._keep_every == 0}
    return [step for step in steps if step not in kept]

  def _best(self, steps: list[int]) -> int | None:
    found = []
    for step in steps if self._keep_best else []:
      with contextlib.suppress(atomic.Corrupt):
        value = atomic.facts_of(_folder_of(self._folder, step))["scalars"].get(self._keep_best)
        if value is not None and not math.isnan(value):
          found.append((self._best_sign * value, step))
    return min(found)[1] if found else None

  def check_logged(self, names: list[str], evaluated: bool) -> None:
    """Checks that what tells the best checkpoint is among the names logged at a step.

    Args:
      names: of the scalars of a log point, or of an evaluation.
      evaluated: whether they are of an evaluation.

    Raises:
      UsageError: it should be, and is not.
    """
    metric = self._keep_best
    if metric and metric not in names and metric.startswith("eval/") == evaluated:
      instead = f"Write one of: {', '.join(names)}" if names else "This run has no evaluation"
      raise UsageError(f"Checkpoints.keep_best = '{metric}': nothing of that name is logged."
                       f"{nearest(metric, names)} {instead}")

  # ---- Restoring --------------------------------------------------------------------------------

  def restore(self, newest: int | None = None) -> dict | None:
    """Restores the newest good checkpoint and returns the loop's state; None if there is none.

    A damaged one is told on the standard error and passed over.

    Args:
      newest: restores none of a later step.

    Returns:
      the `loop_state` given to `save`, and the "step".

    Raises:
      UsageError: none of the checkpoints is good, or the newest good one and the step do not have
        the same variables, and no partial restore is allowed.
    """
    self.wait()
    if self._writes and self._folder.exists():
      with contextlib.suppress(OSError):  # Where the folder is read-only, there is none either.
        atomic.clean(self._folder)
    found = _newest_good(self._folder, newest)
    if found is None:
      return None
    folder, facts = found
    values = _read_bundle(folder)
    by_replica = facts["by_replica"]
    mismatches = self._variables.mismatches({
        path: (tf.as_dtype(value.dtype), list(value.shape[path in by_replica:]))
        for path, value in values.items()})
    if mismatches:
      _tell(folder, mismatches)
    self._variables.put(Snapshot(
        {path: value for path, value in values.items() if path not in mismatches}, by_replica))
    return {**facts["loop"], "step": facts["step"]}

  def check_complete(self, used: list) -> None:
    """Checks that the variables a step uses are among those saved.

    Raises:
      UsageError: some would be lost in a restart.
    """
    lost = [v.name for v in used if not self._variables.covers(v)]
    if lost:
      raise UsageError(
          f"the step uses {len(lost)} variables that are not reached through its attributes, such "
          f"as '{lost[0]}': a restart would lose them; make the step a tf.Module and assign its "
          "networks and optimizers to attributes")


def read(folder: pathlib.Path, newest: int | None = None) -> dict[str, np.ndarray]:
  """The variables of the newest good checkpoint in `folder`, by path.

  A variable of which replicas keep values of their own is `[num_replicas, ...]`.

  Args:
    folder: of the checkpoints.
    newest: reads none of a later step.

  Raises:
    UsageError: there is none.
  """
  found = _newest_good(folder, newest)
  if found is None:
    raise UsageError(f"{folder}: holds no checkpoint")
  return _read_bundle(found[0])


def steps_of(folder: pathlib.Path) -> list[int]:
  """The steps of the checkpoints in `folder`, good or damaged, in order."""
  names = (re.fullmatch(r"step-(\d{8,})", path.name) for path in folder.glob("step-*"))
  return sorted(int(name[1]) for name in names if name)


def _folder_of(folder: pathlib.Path, step: int) -> pathlib.Path:
  return folder / f"step-{step:08d}"


def _newest_good(folder: pathlib.Path, newest: int | None = None
                 ) -> tuple[pathlib.Path, dict] | None:
  """The folder of a checkpoint and its facts; None where there is no checkpoint, good or not."""
  damaged = []
  for step in reversed(steps_of(folder)):
    if newest is not None and step > newest:
      continue
    found = _folder_of(folder, step)
    try:
      facts = atomic.check(found)
    except (atomic.Corrupt, OSError) as error:
      damaged.append(f"{found} is damaged ({error})")
      continue
    for line in damaged:
      print(f"{line}; that of step {step} is used instead", file=sys.stderr, flush=True)
    return found, facts
  if damaged:
    raise UsageError(f"{damaged[0]}, and no earlier one is good; put a good one back, or "
                     "start anew in another --workdir")
  if (folder / "checkpoint").exists():
    raise UsageError(f"{folder}: the checkpoints are of another version of this program; start "
                     "anew in another --workdir")
  return None


def _write_bundle(folder: pathlib.Path, values: dict[str, np.ndarray]) -> None:
  if values:  # A step may have no variables, but a bundle has some.
    with tf.device("/cpu:0"):
      tf.raw_ops.SaveV2(prefix=str(folder / _BUNDLE), tensor_names=list(values),
                        shape_and_slices=[""] * len(values), tensors=list(values.values()))


def _read_bundle(folder: pathlib.Path) -> dict[str, np.ndarray]:
  if not (folder / f"{_BUNDLE}.index").exists():
    return {}
  reader = tf.train.load_checkpoint(str(folder / _BUNDLE))
  return {path: np.asarray(reader.get_tensor(path))
          for path in sorted(reader.get_variable_to_shape_map())}


def _tell(folder: pathlib.Path, mismatches: dict[str, str]) -> None:
  """Tells what does not fit: as an error, or line by line where that is allowed."""
  if _partial_allowed:
    for path, what in mismatches.items():
      print(f"warning: --allow_partial_restore: '{path}' {what}; it is not restored",
            file=sys.stderr, flush=True)
    return
  named = [f"'{path}' {what}" for path, what in list(mismatches.items())[:_NAMED]]
  more = [f"{len(mismatches) - _NAMED} more"] if len(mismatches) > _NAMED else []
  raise UsageError(
      f"{folder}: does not fit this step in {len(mismatches)} variables: "
      f"{', '.join([*named, *more])}; use the configuration it was saved with, another --workdir, "
      "or --allow_partial_restore")


def _reason(error: Exception) -> str:
  """Why something was not written, in a few words."""
  return atomic.disk_fault(error) or str(error).splitlines()[0]


def _check_settings(keep_last: int, keep_every: int, keep_best: str | None, best_is: str) -> None:
  for name, value, lowest in (("keep_last", keep_last, 1), ("keep_every", keep_every, 0)):
    if not isinstance(value, int) or value < lowest:
      raise UsageError(f"Checkpoints.{name} = {value!r}: must be a whole number of at least "
                       f"{lowest}")
  if keep_best is not None and not (isinstance(keep_best, str) and keep_best):
    raise UsageError(f"Checkpoints.keep_best = {keep_best!r}: must be the name of a scalar that is "
                     "logged, such as 'eval/reconstruction_error', or None")
  if best_is not in ("min", "max"):
    raise UsageError(f"Checkpoints.best_is = {best_is!r}: write 'min' or 'max'")
