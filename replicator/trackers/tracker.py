"""What a tracker is: a service, or a file, that gets what a run logs.

A tracker is any object with the three methods of `Tracker`. It gets a line of `metrics.jsonl` only
when the run will not take it back, and is asked what it has whenever it begins. So it need not
delete anything, and need not remember more than it shows.
"""

import dataclasses
import importlib.util
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from replicator.errors import UsageError

FINISHED, FAILED, INTERRUPTED = "finished", "failed", "interrupted"
"""How a run ended."""


@dataclasses.dataclass(frozen=True)
class TrackedRun:
  """What a tracker may tell about a run.

  Attributes:
    id: 16 letters and digits, the same whenever the run resumes. A run whose lines were taken back
      gets another one, since services cannot delete points.
    name: the name of the workdir's folder.
    experiment: the name of the program, such as 'sngan'.
    group: the name of the sweep that the run belongs to; empty if there is none.
    workdir: the folder of the run, with `config.gin`, `run.json` and all else.
    config: the values in `config.gin` by name, such as `{"train.steps": 1000}`. References to
      functions are strings, as gin writes them.
  """

  id: str
  name: str
  experiment: str
  group: str
  workdir: pathlib.Path
  config: dict[str, Any]


class Tracker(Protocol):
  """Gets what a run logs; the methods are called in one thread, which is not the training's.

  What a method raises is reported in one line, and the run goes on. Later, `begin` is called again.
  """

  def begin(self, run: TrackedRun) -> int:
    """Opens the record of `run.id`, new or not; returns the last step that it has, or -1.

    All lines after that step come again.
    """

  def log(self, step: int, scalars: Mapping[str, float], picture: pathlib.Path | None) -> None:
    """Adds what was logged at a step, which comes after the steps before.

    Args:
      step: the number of training steps.
      scalars: the line of `metrics.jsonl` without its step: `seconds`, the scalars of the training
        step, and those of an evaluation as `eval/...`. They may be NaN or infinite.
      picture: the PNG file in `samples/` of this step, if there is one.
    """

  def end(self, status: str) -> None:
    """Closes the record of a run that is 'finished', 'failed' or 'interrupted'."""


def check(trackers: Sequence[Any]) -> None:
  """Raises a UsageError if something in `train.trackers` is no tracker."""
  if not isinstance(trackers, Sequence) or isinstance(trackers, str):
    raise UsageError(f"train.trackers = {trackers!r}: must be a list, such as [@MLflow()]")
  for tracker in trackers:
    if isinstance(tracker, type):
      raise UsageError(f"train.trackers: {tracker.__name__} is a class; write "
                       f"@{tracker.__name__}(), with brackets")
    for method in ("begin", "log", "end"):
      if not callable(getattr(tracker, method, None)):
        raise UsageError(f"train.trackers: {tracker!r} is no tracker, since it has no method "
                         f"'{method}'; write one of @MLflow(), @WandB(), @Trackio(), or your own, "
                         "as replicator.trackers.tracker.Tracker says")


def require(package: str, needed_by: str) -> None:
  """Raises a UsageError if a package is not installed that an extra of the same name brings."""
  if importlib.util.find_spec(package) is None:
    raise UsageError(f"@{needed_by}() needs the package {package}: pip install "
                     f"'replicator[{package}]'")
