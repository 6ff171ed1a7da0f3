"""`Run`: the state of a run in progress, which is passed to callbacks."""

import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from replicator.console.status import Progress
from replicator.step import context
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
  """A run in progress, made by `train` and passed to callbacks.

  Attributes:
    module: the step.
    schedule: when the run logs, evaluates, saves and ends; see `train`.
    scalars: the newest logged scalars, and those of the newest evaluation as `eval/...`.
    writer: writes scalars, images, histograms and texts; see `Writer`.
    workdir: the folder of the run.
    place: the workdir as the user wrote it, a folder or a URL.
    replicator: runs the step.
    saved_step: the step of the newest checkpoint on disk, from which a restart would resume.
    inputs: where the batches come from; None if the step makes its own examples.
    input_context: this process's part of the inputs.
    evaluate, before_call, guard: the arguments of `train`.
    retention: which checkpoints to keep.
    batch: this worker's part of the newest batch.
    warnings: the warnings about the step.
    checks_first_step: whether to compare the first step; see `train.check_first_step`.
    is_exact: whether operations are deterministic.
    went_back: whether it continues from a checkpoint before its newest; see `from_step`.
    has_begun: whether the first call has succeeded.
    is_check: whether it is a check of the doctor, which prints nothing, saves nothing, and accepts
      a step with state that a restart would lose.
    waiting: the seconds that this process has waited for batches.
    computing: the seconds that it has waited for steps.
    training: the seconds of both, and of `before_call`.
    call_seconds: the seconds of the newest call.
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
    self.seconds = 0.0  # The training time, including that of earlier processes of the run.
    self.scalars: dict[str, float] = {}
    self.writer = Writer(seconds=lambda: self.seconds)
    self.saved_step: int | None = None
    self.batch: Any = None
    self.warnings: list[str] = []
    self.went_back = self.has_begun = self.is_check = False
    self.checks_first_step = self.is_exact = True
    self.waiting = self.computing = self.training = self.call_seconds = 0.0
    self.why_stopped = ""  # The reason that a callback passed to `stop`.
    self.saver: Any = None  # A `Saver`, once there is one.
    self.progress: Progress | None = None  # On the chief, while the loop runs.
    self._doubted: list[str] = []
    self._notes: list[str] = []  # Lines written before the loop runs.

  @property
  def step(self) -> int:
    """The number of training steps that are done."""
    return self._step

  @step.setter
  def step(self, step: int) -> None:
    self._step = context.run.outside.step = step

  @property
  def is_chief(self) -> bool:
    """Whether this process is the one that writes the workdir."""
    return self.replicator.worker_id == 0

  def say(self, line: str) -> None:
    """Writes a line for the user, above the progress; on the chief only."""
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

  def doubt(self, means: Mapping[str, float]) -> None:
    """Prints warnings that the step's method `doubts` returns for these means, each only once."""
    for what, line in getattr(self.module, "doubts", lambda means: {})(means).items():
      if what not in self._doubted:
        self._doubted.append(what)
        self.warn(line)

  def doing(self, what: str) -> None:
    """Shows what the run is busy with from now on; shows nothing if `what` is empty."""
    if self.progress:
      self.progress.doing(what)

  def stop(self, why: str) -> None:
    """Ends the run successfully after this step, which is saved; prints `why`."""
    self.why_stopped = self.why_stopped or why

  def show(self, progress: Progress) -> None:
    """Writes all lines above `progress` from now on, including the earlier ones."""
    self.progress = progress
    notes, self._notes = self._notes, []
    for line in notes:
      self.say(line)

  def data(self) -> str:
    """Describes where the batches come from."""
    if self.inputs is None:
      return "made by the step"
    if isinstance(self.inputs, tf.data.Dataset):
      return "a tf.data.Dataset"
    name = getattr(self.inputs, "__name__", type(self.inputs).__name__)
    examples = num_examples(self.inputs)
    if examples is None:
      return name
    more = f", {self.inputs.describe()}" if hasattr(self.inputs, "describe") else ""
    return f"{name}, {examples:,} examples{more}"

  def parameters(self) -> dict[str, int]:
    """Counts the trained parameters of each Keras network of the step, by path."""
    counts = {path: sum(math.prod(v.shape) for v in network.trainable_variables)
              for path, network in held_by(self.module, (keras.layers.Layer,))}
    return {path: count for path, count in counts.items() if count}


