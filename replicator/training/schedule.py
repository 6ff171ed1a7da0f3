"""When a run logs, evaluates, calls its callbacks and saves."""

import dataclasses
import math
from collections.abc import Sequence

from replicator.errors import UsageError
from replicator.training.callbacks.callback import Callback, is_installed

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Schedule:
  """The intervals of `replicator.train`, and the callbacks.

  Raises a UsageError if a callback would be due in the middle of a call.
  """

  steps: int
  steps_per_call: int
  log_every: int
  eval_every: int
  checkpoint_every: int
  callbacks: Sequence[Callback] = ()

  def __post_init__(self) -> None:
    for callback in self.callbacks:
      misses = callback.every and callback.every % self.steps_per_call
      if misses and not is_installed(callback):  # Installed ones may still change the schedule.
        raise UsageError(f"{type(callback).__name__}.every = {callback.every}: must be a multiple "
                         f"of train.steps_per_call = {self.steps_per_call}")

  @property
  def modules(self) -> dict[str, Callback]:
    """The callbacks that are saved in checkpoints, by name."""
    found: dict[str, Callback] = {}
    for callback in self.callbacks:
      if isinstance(callback, tf.Module):
        name = type(callback).__name__
        count = sum(type(each) is type(callback) for each in found.values())
        found[name if not count else f"{name}_{count + 1}"] = callback
    return found

  def logs_at(self, step: int) -> bool:
    """Returns whether the scalars are logged after `step` steps."""
    return self._is_due(self.log_every, step)

  def evaluates_at(self, step: int) -> bool:
    """Returns whether an evaluation is due after `step` steps."""
    return self._is_due(self.eval_every, step)

  def saves_at(self, step: int) -> bool:
    """Returns whether a checkpoint is due after `step` steps."""
    return self._is_due(self.checkpoint_every, step)

  def calls_at(self, callback: Callback, step: int) -> bool:
    """Returns whether `after_steps` of a callback is due after `step` steps."""
    every = self.log_every if callback.every is None else callback.every
    return step > 0 and (self._is_due(every, step) or step in callback.at)

  def is_due(self, step: int) -> bool:
    """Returns whether anything is due after `step` steps, so that they must have finished."""
    return (self.logs_at(step) or self.evaluates_at(step) or self.saves_at(step)
            or any(self.calls_at(callback, step) for callback in self.callbacks))

  def missed(self, step: int) -> str:
    """Explains why calls from `step` on would miss due steps and the end; '' if they would not."""
    each = self.steps_per_call
    if step >= self.steps or step % each == 0:
      return ""
    return (f"train.steps_per_call = {each}: does not divide step {step}, where the run resumes, "
            f"so no call would end at a step where something is due; use {math.gcd(step, each)}")

  def _is_due(self, every: int, step: int) -> bool:
    return every > 0 and (step % every == 0 or step == self.steps)
