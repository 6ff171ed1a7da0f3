"""Records the losses, gradients and variables of a step for the doctor's check of replicas."""

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable

from replicator.configuration.gin_internals import operative_config
from replicator.errors import UsageError
from replicator.training.callbacks.callback import Callback, installed
from replicator.training.checks.diagnosis import Quantities
from replicator.training.checks.inspection import Evidence, Inspector
from replicator.training.checks.step_recorder import StepRecorder
from replicator.training.divergence.guard import Guard
from replicator.training.prepared import Enough
from replicator.training.run import Run

import keras
import tensorflow as tf


@dataclasses.dataclass
class ReplicaRecording:
  """The first steps of one variant: their numbers, and the evidence found in them."""

  quantities: Quantities
  evidence: Evidence
  is_chief: bool = True


def record(main: Callable[[str], None], steps: int, precision: str) -> ReplicaRecording:
  """Runs a configured experiment until `steps` steps of its `train` are recorded.

  Raises a UsageError if the experiment trains fewer steps, or sets a different precision itself.
  """
  keras.backend.clear_session()  # Names and seeds as in a new process.
  tf.random.set_seed(0)  # For what the program makes before it trains, such as a data set.
  recorder = ReplicaRecorder(steps, precision)
  with tempfile.TemporaryDirectory(prefix="replicator-") as workdir, (
      installed([recorder], is_check=True)), contextlib.suppress(Enough):
    main(workdir)
    raise UsageError("the experiment did not call replicator.train, so there is no step"
                     if not hasattr(recorder, "recording") else
                     f"the experiment ended before step {steps}")
  return recorder.recording


class ReplicaRecorder(Callback):
  """A callback that records the first steps of a run, and ends the program."""

  every = 1
  on_all_workers = True

  def __init__(self, steps: int, precision: str):
    self._steps, self._precision = steps, precision

  def begin(self, run: Run) -> None:
    """Reads the initial values."""
    if keras.config.dtype_policy().name != self._precision:
      raise UsageError(f"the experiment passes precision = '{keras.config.dtype_policy().name}' to "
                       "train itself; leave train.precision to gin")
    run.is_check, run.guard = True, Guard("off")
    run.schedule = dataclasses.replace(
        run.schedule, steps=max(run.schedule.steps, self._steps), steps_per_call=1, eval_every=0,
        checkpoint_every=0)
    self._recorder, self._inspector = StepRecorder(run.module), Inspector(run.module)
    self.hooks = [self._recorder, self._inspector]
    self._recorder.quantities.update(self._recorder.read(0))
    self.recording = ReplicaRecording(self._recorder.quantities, self._inspector.evidence,
                                      run.is_chief)

  def after_steps(self, run: Run) -> None:
    """Reads the values after a step."""
    self._recorder.quantities.update(self._recorder.read(run.step))
    if run.step == self._steps:
      self._inspector.look()
      evidence = self.recording.evidence
      evidence.constant_draws += [
          warning for warning in run.warnings if "its numbers are constants" in warning]
      evidence.microbatched = any(
          selector == "replicator.microbatch" and "n" in values
          for (_, selector), values in operative_config().items())
      raise Enough
