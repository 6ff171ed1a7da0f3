"""What must survive a restart, and where it is kept."""

import json
import pathlib
import tempfile
from typing import Any

import tensorflow as tf

from replicator import state
from replicator.errors import UsageError


class Checkpoints:
  """Saves and restores everything that hangs off a step, and the loop's own state.

  Every worker of a cluster saves, since reading a variable may need all of them, but only the
  chief's files are kept; every worker restores from the chief's folder.

  Args:
    folder: shared by all workers.
    step: the step object; its variables are those of its attributes.
    is_chief: whether this process keeps what it writes.
    keep: how many checkpoints stay.
  """

  def __init__(self, folder: pathlib.Path, step: Any, is_chief: bool, keep: int = 3):
    self._folder = folder
    self._state = _JsonState()
    self._variables = state.variables_of(step)
    self._checkpoint = tf.train.Checkpoint(loop=self._state, variables=self._variables)
    self._scratch = None if is_chief else tempfile.TemporaryDirectory(prefix="replicator-")
    self._manager = tf.train.CheckpointManager(
        self._checkpoint, self._scratch.name if self._scratch else str(folder),
        max_to_keep=keep, checkpoint_name="step")

  def save(self, step_number: int, loop_state: dict) -> None:
    """Writes a checkpoint of step `step_number` with the loop's JSON-able `loop_state`."""
    self._state.value = {**loop_state, "step": step_number}
    self._manager.save(checkpoint_number=step_number)

  def restore(self) -> dict | None:
    """Restores the newest checkpoint, strictly, and returns the loop's state; None if none.

    Raises:
      UsageError: the checkpoint and the step do not have the same variables.
    """
    newest = tf.train.latest_checkpoint(str(self._folder))
    if newest is None:
      if (self._folder / "checkpoint").exists():
        raise UsageError(f"{self._folder}: the newest checkpoint that is listed there is gone; "
                         "put it back, or start anew in another --workdir")
      return None
    try:
      self._checkpoint.restore(newest).assert_consumed()
    except (AssertionError, ValueError, tf.errors.OpError) as error:
      reason = " ".join(str(error).split())
      raise UsageError(f"{newest}: does not fit this step ({reason[:300]}); use the "
                       "configuration it was saved with, or another --workdir") from error
    return self._state.value

  def check_complete(self, used: list) -> None:
    """Checks that the variables a step uses are among those saved.

    Raises:
      UsageError: some would be lost in a restart.
    """
    saved = {id(copy.handle) for v in self._variables.values() for copy in _copies(v)}
    lost = [v.name for v in used if any(id(copy.handle) not in saved for copy in _copies(v))]
    if lost:
      raise UsageError(
          f"the step uses {len(lost)} variables that are not reached through its attributes, such "
          f"as '{lost[0]}': a restart would lose them; make the step a tf.Module and assign its "
          "networks and optimizers to attributes")


def _copies(variable: Any) -> list[Any]:
  """The plain variables behind a distributed one."""
  if isinstance(variable, tf.random.Generator):
    variable = variable.state
  values = getattr(variable, "values", None)
  if isinstance(values, tuple):  # One for each replica of a synchronous strategy.
    return list(values)
  return [getattr(variable, "_v", variable)]  # Central storage and parameter servers wrap one.


class _JsonState(tf.train.experimental.PythonState):
  """A JSON-able value inside a TensorFlow checkpoint."""

  def __init__(self):
    self.value: dict = {}

  def serialize(self) -> str:
    return json.dumps(self.value)

  def deserialize(self, string_value: bytes) -> None:
    self.value = json.loads(string_value)
