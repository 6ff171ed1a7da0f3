"""`Run`: a training under way, as callbacks see it."""

import math
import pathlib
from collections.abc import Callable
from typing import Any

from replicator.console.status import Progress
from replicator.step.variables import held_by
from replicator.strategies.replicator import Replicator
from replicator.training.checkpoints.retention import Checkpoints
from replicator.training.divergence.guard import Guard
from replicator.training.inputs.inputs import InputContext, Inputs, num_examples
from replicator.training.schedule import Schedule
from replicator.training.workdir.writer import Writer

import keras
import tensorflow as tf


class Run:
  """A training under way; `train` makes it, and callbacks get it.

  Attributes:
    module: the step.
    step: the number of training steps that are done.
    schedule: when the run logs, evaluates, saves and ends, as `train` says.
    scalars: the newest scalars that were logged, and those of the newest evaluation as `eval/...`.
    writer: writes scalars, images, histograms and texts; see `Writer`.
    workdir: the folder of the run.
    place: the workdir as the user names it, a folder or a URL.
    replicator: runs the step.
    saved_step: the step of the newest checkpoint on the disk, which a restart would resume from.
    inputs: what the batches come from; None if the step makes its examples.
    input_context: this process's part of the inputs.
    evaluate, before_call, guard: as they were given to `train`.
    retention: which checkpoints are kept.
    batch: this worker's part of the newest batch.
    warnings: what was said of the step that was compiled.
    checks_first_step: whether it compares its first step, see `train.check_first_step`.
    is_exact: whether its operations are deterministic.
    has_begun: whether a first call has ended, and was not refused.
    is_check: whether a check of the doctor runs it, which shows nothing, saves nothing and takes a
      step with state that a restart would lose.
    waiting: the seconds that this process has waited for batches.
    computing: the seconds that it has waited for steps.
    training: the seconds of both, and of `before_call`.
    call_seconds: those of the newest call.
  """

  def __init__(self, module: Callable, replicator: Replicator, workdir: pathlib.Path,
               schedule: Schedule, inputs: Inputs | None, input_context: InputContext,
               evaluate: Callable | None = None, before_call: Callable | None = None,
               guard: Guard | None = None, retention: Checkpoints | None = None):
    self.module, self.replicator, self.workdir = module, replicator, workdir
    self.schedule = schedule
    self.guard, self.retention = guard or Guard(), retention or Checkpoints()
    self.place = str(workdir)
    self.inputs, self.input_context = inputs, input_context
    self.evaluate, self.before_call = evaluate, before_call
    self.step = 0
    self.seconds = 0.0  # Of training, over all processes of the run.
    self.scalars: dict[str, float] = {}
    self.writer = Writer(seconds=lambda: self.seconds)
    self.saved_step: int | None = None
    self.batch: Any = None
    self.warnings: list[str] = []
    self.has_begun = self.is_check = False
    self.checks_first_step = self.is_exact = True
    self.waiting = self.computing = self.training = self.call_seconds = 0.0
    self.why_stopped = ""  # What a callback gave to `stop`.
    self.saver: Any = None  # A `Saver`, once there is one.
    self.progress: Progress | None = None  # On the chief, while the loop runs.
    self._notes: list[str] = []  # Lines from before the loop runs.

  @property
  def is_chief(self) -> bool:
    """Whether this process is the one that writes the workdir."""
    return self.replicator.worker_id == 0

  def say(self, line: str) -> None:
    """Writes a line for the user, above the progress; on the chief alone."""
    line = line.replace(str(self.workdir), self.place)
    if self.progress:
      self.progress.note(line)
    elif self.is_chief and not self.is_check:
      self._notes.append(line)

  def warn(self, *lines: str) -> None:
    """Writes warnings about the step."""
    self.warnings += lines
    for line in lines:
      self.say(f"warning: {line}")

  def doing(self, what: str) -> None:
    """Says what takes time from now on; nothing if it is empty."""
    if self.progress:
      self.progress.doing(what)

  def stop(self, why: str) -> None:
    """Ends the run as a good one after this step, which is saved; `why` is said."""
    self.why_stopped = self.why_stopped or why

  def show(self, progress: Progress) -> None:
    """Says everything by `progress` from now on, also what was said before."""
    self.progress = progress
    notes, self._notes = self._notes, []
    for line in notes:
      self.say(line)

  def data(self) -> str:
    """A few words on where the batches come from."""
    if self.inputs is None:
      return "made by the step"
    if isinstance(self.inputs, tf.data.Dataset):
      return "a tf.data.Dataset"
    name = getattr(self.inputs, "__name__", type(self.inputs).__name__)
    examples = num_examples(self.inputs)
    return name if examples is None else f"{name}, {examples:,} examples"

  def parameters(self) -> dict[str, int]:
    """The number of trained parameters of each Keras network of the step, by its path."""
    counts = {path: sum(math.prod(v.shape) for v in network.trainable_variables)
              for path, network in held_by(self.module, (keras.layers.Layer,))}
    return {path: count for path, count in counts.items() if count}


