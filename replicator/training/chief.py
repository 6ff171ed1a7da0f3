"""The chief: the one process of a run that evaluates, records, and shows the progress."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence

import numpy as np

from replicator.console.error_line import in_one_line
from replicator.console.progress import Progress
from replicator.errors import Preempted, RunFailed, UsageError, first_line
from replicator.trackers.sync import Followers
from replicator.trackers.tracker import FAILED, FINISHED, INTERRUPTED, Tracker
from replicator.workdir import run_summary, writer
from replicator.workdir.live_report import LiveReport


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


class Chief:
  """Evaluates, writes the workdir, and shows its `progress`, which must be entered first.

  Its `trackers` get what it logs, and are ended with it.
  """

  def __init__(self, workdir: pathlib.Path, facts: dict, first_step: int,
               evaluate: Callable[[int], Evaluation] | None, trackers: Sequence[Tracker] = ()):
    self._record = writer.WorkdirWriter(workdir, facts, first_step)
    self.progress = Progress(facts["steps"], facts["global_batch_size"], first_step)
    self._report = LiveReport(self._record, self.progress.note)
    self.trackers = Followers(trackers, workdir, first_step or -1, self.progress.note)
    self._evaluate = evaluate

  def introduce(self, data: str, networks: dict[str, int]) -> None:
    """Says what will be trained, and on what; see `introduction.lines`."""
    for line in run_summary.lines(self._record.facts, data, networks):
      self.progress.note(line)

  def evaluate(self, step: int) -> dict[str, float]:
    """Evaluates, draws the picture, and returns the scalars by the names they are logged under."""
    if self._evaluate is None:
      return {}
    found = self._evaluate(step)
    if found.method and self._record.note("evaluation", found.method):
      self.progress.note(f"evaluation: {found.method}")
    if found.axes:
      self._record.note("axes", [f"eval/{name}" for name in found.axes])
    if found.picture is not None:
      self._record.picture(step, found.picture)
    scalars = {f"eval/{name}": float(value) for name, value in found.scalars.items()}
    self.progress.note(f"step {step}  " + "  ".join(
        f"{name} {value:.4g}" for name, value in scalars.items()))
    return scalars

  def log(self, step: int, seconds: float, scalars: dict[str, float]) -> None:
    """Writes the row of a step: all that was logged and evaluated there."""
    if scalars:
      self._record.metrics(step, seconds, scalars)

  def roll_back(self, step: int, why: str) -> None:
    """Drops what was logged after a step, because the run continues from there."""
    self._record.take_back(step)
    self.trackers.take_back(step)
    self.progress.note(why)

  def write_config(self, evaluated: bool) -> None:
    """Writes the operative configuration; see `operative.after_first_step`."""
    for line in self._record.config(evaluated):
      self.progress.note(line)
    self.trackers.begin()

  def report(self) -> None:
    """Brings the report up to date, if it has been paid for; see `LiveReport`."""
    self._report.update()

  def finish(self, error: BaseException | None = None) -> None:
    """Writes the last report, ends the trackers; `error` ended the run before its last step."""
    if error is None:
      self.progress.note(f"done: {self._report.finish('')}")
    elif isinstance(error, Preempted):
      self._report.finish("interrupted")
    elif isinstance(error, Exception) and not isinstance(error, UsageError):  # It has begun.
      line = first_line(error) if isinstance(error, RunFailed) else in_one_line(error)
      self._report.finish(f"failed: {line}")
    self.end_trackers(error)

  def end_trackers(self, error: BaseException | None) -> None:
    """Ends the trackers of a run that an `error` has ended, or that is done."""
    if self.trackers.names:
      self.progress.doing(f"sending the last lines to {', '.join(self.trackers.names)}")
    hurried = error is not None and not isinstance(error, Exception)
    stopped = hurried or isinstance(error, Preempted)
    self.trackers.end(FINISHED if error is None else INTERRUPTED if stopped else FAILED, hurried)
