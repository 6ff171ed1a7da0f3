"""The protocol of trackers: services, or files, that get what a run logs."""

import dataclasses
import importlib.util
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from replicator.errors import UsageError

FINISHED, FAILED, INTERRUPTED = "finished", "failed", "interrupted"  # How a run ended.


@dataclasses.dataclass(frozen=True)
class TrackedRun:
  """The run that a tracker begins to record.

  The `id` has 16 letters and digits; a run whose sent lines are taken back gets another one. `name`
  is that of the workdir, `experiment` that of the program, and `group` that of the sweep, or empty.
  `config` has the values in `config.gin` by name; references are text.
  """

  id: str
  name: str
  experiment: str
  group: str
  workdir: pathlib.Path
  config: dict[str, Any]


class Tracker(Protocol):
  """Gets what a run logs; all calls come from one thread, which is not the training's.

  What a method raises is reported in one line, and the run goes on; later, `begin` is called again.
  """

  def begin(self, run: TrackedRun) -> int:
    """Opens the record of `run.id`; returns the last step that it has, or -1. Later steps come."""

  def log(self, step: int, scalars: Mapping[str, float], picture: pathlib.Path | None) -> None:
    """Adds a line of `metrics.jsonl` without its step, and the step's PNG file if there is one.

    The run will not take it back. Steps increase. Scalars may be NaN, infinite, or none at all.
    """

  def end(self, status: str) -> None:
    """Closes the record of a run that is 'finished', 'failed' or 'interrupted'."""


def check(trackers: Sequence[Any]) -> None:
  """Raises a UsageError if something in `train.trackers` is no tracker."""
  for tracker in trackers:
    methods = [getattr(tracker, name, None) for name in ("begin", "log", "end")]
    if isinstance(tracker, type) or not all(map(callable, methods)):
      raise UsageError(f"train.trackers: {tracker!r} is no tracker; write @MLflow(), @WandB() or "
                       "@Trackio(), with brackets, or a Tracker of yours")


def require(service: Tracker) -> None:
  """Raises a UsageError if the package of a service is not installed."""
  name = type(service).__name__
  if importlib.util.find_spec(name.lower()) is None:
    raise UsageError(f"@{name}() needs its package: pip install -e '.[{name.lower()}]'")
