"""The lines that a sweep prints: one for each trial that ends, and the state of all."""

from collections.abc import Iterable, Sequence

from replicator.console.formatting import format_duration, format_number
from replicator.sweeps.results import TrialResult
from replicator.sweeps.trials import DONE, FAILED, PRUNED, RUNNING, STOPPED

_NAMED = 3  # The most trials that a line names.


def ended(result: TrialResult) -> str:
  """The line about a trial that has ended: `done    lr=0.1_seed=1_d0c1  eval/loss 0.53  2m 05s`."""
  return "  ".join(filter(None, [
    f"{result.record.status:8s}{_with_metric(result)}", format_duration(result.record.seconds),
    result.record.message]))


def state(results: Sequence[TrialResult], count: int) -> str:
  """The state of a sweep of `count` trials with the current `results`, the best first."""
  best = f"; the best: {_with_metric(results[0])}" if results and results[0].series else ""
  return f"{summary(results, count)}{best}"


def apart(results: Iterable[TrialResult]) -> list[str]:
  """A line about the trials that are not current, or none."""
  ids = [result.record.id for result in results if not result.is_current]
  more = f" and {len(ids) - _NAMED} more" * (len(ids) > _NAMED)
  return [f"shown apart, because the sweep or the contents of its gin files have changed since: "
          f"{', '.join(ids[:_NAMED])}{more}"] if ids else []


def summary(results: Sequence[TrialResult], count: int) -> str:
  """`7 of 12 done, 2 running, 1 failed`, of the current `results`."""
  statuses = [result.record.status for result in results]
  return ", ".join([f"{statuses.count(DONE)} of {count} done",
                    *(f"{statuses.count(status)} {status}"
                      for status in (RUNNING, PRUNED, STOPPED, FAILED) if status in statuses)])


def _with_metric(result: TrialResult) -> str:
  value = f"  {result.file.metric} {format_number(result.best())}" if result.series else ""
  return f"{result.record.id}{value}"
