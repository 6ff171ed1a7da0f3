"""What one process of a run does for all: evaluates, records, and tells how it goes."""

import dataclasses
import pathlib
from collections.abc import Callable

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
    picture: uint8 `[h, w, 3]`, drawn to `samples/`; or None.
    method: one line that says how the scalars were found; kept in `run.json`.
  """

  scalars: dict[str, float]
  picture: np.ndarray | None = None
  method: str = ""


class Chief:
  """The chief's part at log points, evaluations and the end.

  Args:
    workdir: where the run leaves its files.
    facts: for `run.json`.
    first_step: where the run resumes.
    evaluate: called with nothing; None where nothing is evaluated.
  """

  def __init__(self, workdir: pathlib.Path, facts: dict, first_step: int,
               evaluate: Callable[[], Evaluation] | None):
    self.record = writer.WorkdirWriter(workdir, facts, first_step)
    self.progress = Progress(facts["steps"], facts["global_batch_size"], first_step)
    self._evaluate = evaluate

  def roll_back(self, step: int, why: str) -> None:
    """Takes back what was logged after a step, from which the run goes on."""
    self.record.take_back(step)
    self.progress.note(why)

  def log(self, step: int, seconds: float, scalars: dict[str, float]) -> None:
    """Writes the row of a step, of all that was logged and evaluated there."""
    if scalars:
      self.record.metrics(step, seconds, scalars)

  def evaluate(self, step: int) -> dict[str, float]:
    """Evaluates, draws the picture, and returns the scalars by the names they are logged under."""
    if self._evaluate is None:
      return {}
    with context.entered(tf.constant(step, tf.int64)):
      found = self._evaluate()
    if found.method and self.record.note("evaluation", found.method):
      self.progress.note(f"evaluation: {found.method}")
    if found.picture is not None:
      self.record.picture(step, found.picture)
    scalars = {f"eval/{name}": float(value) for name, value in found.scalars.items()}
    self.progress.note(f"step {step}  " + "  ".join(
        f"{name} {value:.4g}" for name, value in scalars.items()))
    return scalars

  def finish(self) -> None:
    """Writes the report."""
    from replicator.workdir import report  # It takes matplotlib with it.
    self.progress.note(f"done: {report.write_report(self.record.workdir)}")
