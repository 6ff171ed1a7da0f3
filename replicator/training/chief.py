"""What one process of a run does for all: it evaluates, records, and shows the progress."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from replicator.console.progress import Progress
from replicator.step import context
from replicator.workdir import writer


@dataclasses.dataclass
class Evaluation:
  """What an evaluation found.

  Attributes:
    scalars: logged under `eval/`.
    picture: uint8 `[h, w, 3]`, written to `samples/`; or None.
    method: one line on how the scalars were computed; kept in `run.json`.
    axes: names of scalars, such as 'environment_steps', that the report draws the others against,
      besides the step; kept in `run.json` as they are logged.
  """

  scalars: dict[str, float]
  picture: np.ndarray | None = None
  method: str = ""
  axes: tuple[str, ...] = ()


class SilentChief:
  """Takes the place of the chief on the other workers: evaluates, writes and shows nothing."""

  def __enter__(self) -> "SilentChief":
    return self

  def __exit__(self, *exception: Any) -> None:
    pass

  def note(self, line: str) -> None:
    """Shows one line that stays."""

  def show(self, step: int, scalars: dict[str, float]) -> None:
    """Shows that `step` steps are done, and the scalars of this log point."""

  def evaluate(self, step: int) -> dict[str, float]:
    """Evaluates, draws the picture, and returns the scalars by the names they are logged under."""
    return {}

  def log(self, step: int, seconds: float, scalars: dict[str, float]) -> None:
    """Writes the row of a step: all that was logged and evaluated there."""

  def roll_back(self, step: int) -> None:
    """Drops what was logged after a step, because the run continues from there."""

  def write_config(self, evaluated: bool) -> None:
    """Writes the operative configuration, after the first step.

    Args:
      evaluated: whether the configuration of the evaluation was used, too.
    """

  def finish(self) -> None:
    """Writes the report."""


def make_chief(workdir: pathlib.Path, facts: dict, first_step: int,
               evaluate: Callable[[], Evaluation] | None) -> SilentChief:
  """The chief, which evaluates, writes the workdir, and shows the progress on standard output.

  Args:
    workdir: where the run leaves its files.
    facts: for `run.json`.
    first_step: where the run resumes.
    evaluate: called without arguments; None if nothing is evaluated.
  """
  return _Chief(workdir, facts, first_step, evaluate)


class _Chief(SilentChief):
  def __init__(self, workdir: pathlib.Path, facts: dict, first_step: int,
               evaluate: Callable[[], Evaluation] | None):
    self._record = writer.WorkdirWriter(workdir, facts, first_step)
    self._progress = Progress(facts["steps"], facts["global_batch_size"], first_step)
    self._evaluate = evaluate

  def __enter__(self) -> "_Chief":
    self._progress.__enter__()
    return self

  def __exit__(self, *exception: Any) -> None:
    self._progress.__exit__(*exception)

  def note(self, line: str) -> None:
    self._progress.note(line)

  def show(self, step: int, scalars: dict[str, float]) -> None:
    self._progress.update(step, scalars)

  def evaluate(self, step: int) -> dict[str, float]:
    if self._evaluate is None:
      return {}
    with context.entered(tf.constant(step, tf.int64)):
      found = self._evaluate()
    if found.method and self._record.note("evaluation", found.method):
      self.note(f"evaluation: {found.method}")
    if found.axes:
      self._record.note("axes", [f"eval/{name}" for name in found.axes])
    if found.picture is not None:
      self._record.picture(step, found.picture)
    scalars = {f"eval/{name}": float(value) for name, value in found.scalars.items()}
    self.note(f"step {step}  " + "  ".join(
        f"{name} {value:.4g}" for name, value in scalars.items()))
    return scalars

  def log(self, step: int, seconds: float, scalars: dict[str, float]) -> None:
    if scalars:
      self._record.metrics(step, seconds, scalars)

  def roll_back(self, step: int) -> None:
    self._record.take_back(step)

  def write_config(self, evaluated: bool) -> None:
    for line in self._record.config(evaluated):
      self.note(line)

  def finish(self) -> None:
    from replicator.workdir import report  # It takes matplotlib with it.
    self.note(f"done: {report.write_report(self._record.workdir)}")
