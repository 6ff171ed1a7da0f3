"""The chief: the one process of a run that records, and shows the progress."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from replicator.console.error_line import line_of
from replicator.console.status import Progress
from replicator.errors import Preempted, UsageError
from replicator.trackers.sync import Followers
from replicator.trackers.tracker import FAILED, FINISHED, INTERRUPTED, Tracker
from replicator.workdir import remote, run_summary, writer


@dataclasses.dataclass
class Evaluation:
  """The outcome of an evaluation.

  Attributes:
    scalars: logged under `eval/`.
    picture: uint8 `[h, w, 3]`, written to `samples/`; or None.
    method: one line on how the scalars were computed; kept in `run.json`.
    axes: names of scalars, such as 'environment_steps', that the report draws the others against,
      besides the step; kept in `run.json` as they are logged.

  Raises a UsageError if a scalar is not one number, or the picture not of that form.
  """

  scalars: dict[str, float]
  picture: np.ndarray | None = None
  method: str = ""
  axes: tuple[str, ...] = ()

  def __post_init__(self):
    if not isinstance(self.scalars, dict):
      raise UsageError(f"Evaluation: the scalars are a {type(self.scalars).__name__}; write a dict "
                       "of numbers, such as {'score': 0.5}")
    for name, value in self.scalars.items():
      if not (isinstance(name, str) and _is_number(value)):
        raise UsageError(f"Evaluation: the scalar {name!r} is {_form_of(value)}; write a name and "
                         "one number, such as 'score': float(tf.reduce_mean(scores))")
    if self.picture is not None:
      self.picture = np.asarray(self.picture)
      if self.picture.shape[2:] != (3,) or self.picture.dtype != np.uint8:
        raise UsageError(f"Evaluation: the picture is {_form_of(self.picture)}; write uint8 "
                         "[h, w, 3], of values from 0 to 255")


def _is_number(value: Any) -> bool:
  if isinstance(value, str | bytes):
    return False
  try:
    float(value)
    return np.ndim(value) == 0
  except (TypeError, ValueError):
    return False


def _form_of(value: Any) -> str:
  if hasattr(value, "dtype") and hasattr(value, "shape"):
    return f"{value.dtype.name} {list(value.shape)}"
  return f"a {type(value).__name__}"


class Chief:
  """Writes the workdir, and shows the progress, from entry to exit.

  `restored` is the step of the checkpoint that the run goes on from, or None without one.
  `doing` and `show` are those of `Progress`, `log` and `sync` those of `WorkdirWriter`. `settle`
  lets the trackers have what was logged up to a step, which a checkpoint covers.
  """

  def __init__(self, workdir: pathlib.Path, facts: dict, restored: int | None,
               trackers: Sequence[Tracker] = ()):
    self._record = writer.WorkdirWriter(workdir, facts, restored or 0)
    self._progress = Progress(facts["steps"], facts["global_batch_size"], restored or 0)
    self.doing, self.show = self._progress.doing, self._progress.update
    covered = -1 if restored is None else restored
    self._trackers = Followers(trackers, workdir, covered, self.note)
    self.log, self.sync = self._record.metrics, self._record.sync
    self.settle = self._trackers.settle
    self._has_begun = False  # Whether a first call was made, and is not refused.

  def __enter__(self) -> "Chief":
    self._progress.__enter__()
    return self

  def __exit__(self, *error: Any) -> None:
    self._progress.__exit__(*error)

  def note(self, line: str) -> None:
    """Writes a line for the user; see `Progress`."""
    self._progress.note(remote.named(line, self._record.workdir))

  def introduce(self, data: str, networks: dict[str, int]) -> None:
    """Says what will be trained, and on what; see `run_summary.lines`."""
    for line in run_summary.lines(self._record.facts, data, networks):
      self.note(line)

  def evaluated(self, step: int, found: Evaluation) -> dict[str, float]:
    """Keeps the picture, and returns the scalars by the names they are logged under."""
    if not isinstance(found, Evaluation):
      raise UsageError(f"evaluate returned a {type(found).__name__}; return replicator.Evaluation("
                       "{'score': 0.5}), of numbers to log")
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

  def roll_back(self, step: int, why: str) -> None:
    """Drops what was logged after a step, because the run continues from there."""
    self._record.take_back(step)
    self.settle(step)
    self.note(why)

  def write_config(self, evaluated: bool) -> None:
    """Writes the operative configuration after the first call; see `operative.after_first_step`."""
    for line in self._record.config(evaluated):
      self.note(line)
    self._has_begun = True
    self._trackers.begin()

  def report(self, ended: str | None = None) -> None:
    """Brings the report up to date, unless the last one was too recent; see `WorkdirWriter`."""
    if problem := self._record.report(ended):
      self.note(problem)

  def finish(self, error: BaseException | None = None, ended: str = "") -> None:
    """Writes the last report, ends the trackers; `error` ended the run before its last step.

    Without an error, `ended` says why it was not the last step, if it was not.
    """
    if error is None:
      self.report(ended)
      self.note(f"done: {self._record.workdir / 'report.html'}")
    elif isinstance(error, Preempted):
      self.report("interrupted")
    elif isinstance(error, Exception) and (self._has_begun or not isinstance(error, UsageError)):
      self.report(f"failed: {line_of(error)}")
    self.end_trackers(error)

  def end_trackers(self, error: BaseException | None) -> None:
    """Ends the trackers of a run that an `error` has ended, or that is done."""
    if self._trackers.names:
      self.doing(f"sending the last lines to {', '.join(self._trackers.names)}")
    hurried = error is not None and not isinstance(error, Exception)
    stopped = hurried or isinstance(error, Preempted)
    self._trackers.end(FINISHED if error is None else INTERRUPTED if stopped else FAILED,
                       seconds=3.0 if hurried else 30.0)


class SilentChief(contextlib.nullcontext):
  """The chief as the other workers have it: it has all methods of `Chief`, and records nothing."""

  def __getattr__(self, name: str) -> Callable[..., Any]:
    return lambda *arguments, **keywords: None
