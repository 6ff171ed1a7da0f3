"""The divergence guard: looks at the numbers of every step, and says which must not pass."""

import collections
import dataclasses
import math
from collections.abc import Mapping

import gin
import numpy as np

from replicator.console.formatting import format_number
from replicator.errors import UsageError, nearest
from replicator.training.signals import PREFIXES

ACTIONS = ("stop", "warn", "roll_back", "off")
RECENT = 20
"""So many steps are told of when one fails."""

History = dict[str, np.ndarray]  # {name: [steps]}


@dataclasses.dataclass(frozen=True)
class Failure:
  """A step with a number that is not finite, or past its limit.

  Attributes:
    step: its number, counted from 1 as in the log.
    offending: the first such scalars, by name.
    recent: all scalars of this step and of those before it, `[steps]`, the oldest first.
    limits: the limits of the offending ones, where they are finite.
  """

  step: int
  offending: dict[str, float]
  recent: History
  limits: dict[str, float]

  def __str__(self) -> str:
    told = [f"{name} is {format_number(value)}" + (
        f", over its limit of {format_number(self.limits[name])}" if name in self.limits else "")
            for name, value in self.offending.items()]
    more = f" (and {len(told) - 1} more)" if len(told) > 1 else ""
    return f"step {self.step}: {told[0]}{more}"


@gin.configurable(module="replicator")
class Guard:
  """What to do about a step whose numbers are not finite, or past a limit.

  The numbers are the scalars that the step returns and its signals, averaged over replicas, so
  that all workers decide alike. Gradients that are not finite show in `grad_norm/...`, unless
  their update is skipped by design. No checkpoint is saved of a step that was not finite.

  A step that returns `sample_variance` and `data_variance`, the variance over the batch of what
  it generates and of what it learns from, is also looked at for mode collapse.

  Args:
    action: 'stop' ends the run with status 1; 'warn' tells of it, once for each log point;
      'roll_back' goes back to the last checkpoint, and on with other random draws and with
      the data after those that were used; 'off' looks at nothing. A stop and a rollback leave
      `failures/step-NNNNNNNN/` behind, with the batch and the numbers.
    limits: the highest value that each of some scalars may have, `{'grad_norm/generator': 1e4}`.
    max_rollbacks: so many times a run is rolled back; then it is stopped.
    collapse: warns when the mean `sample_variance` since the last log point falls below this
      fraction of the mean `data_variance`; 0 for never.
    signals: whether the gradient norms and singular values of `training.signals` are logged.

  Raises:
    UsageError: a setting cannot work.
  """

  def __init__(self, action: str = "stop", limits: Mapping[str, float] | None = None,
               max_rollbacks: int = 3, collapse: float = 0.05, signals: bool = True):
    _check(action, limits, max_rollbacks, collapse)
    self.action = action
    self.max_rollbacks = max_rollbacks
    self.collapse = collapse
    self.signals = signals
    self.is_sound = True
    """Whether the last step that was looked at was finite, or nobody looks."""
    self._limits = {name: float(value) for name, value in (limits or {}).items()}
    self._recent: collections.deque[History] = collections.deque(maxlen=RECENT)
    self._warned = False
    self._collapsed = False

  def check_supported(self, strategy: str) -> None:
    """Raises a UsageError if a strategy of that name cannot go back to a checkpoint."""
    if self.action == "roll_back" and strategy == "parameter_server":
      raise UsageError("Guard.action = 'roll_back': under 'parameter_server' steps overtake each "
                       "other, so that none is the last good one; write 'stop' or 'warn'")

  def failure_in(self, first_step: int, values: History) -> Failure | None:
    """The first among the steps `first_step`, `first_step + 1`, ... (from 1) of one call, if any.

    Args:
      first_step: the number of the first.
      values: what all of them logged.

    Raises:
      UsageError: a limit is set for what is not logged.
    """
    if self.action == "off":
      return None
    if not self._recent:
      self._check_names(list(values))
    self._recent.append(values)
    table = np.stack(list(values.values()))  # [names, steps]
    finite = np.isfinite(table)
    limits = np.array([self._limits.get(name, math.inf) for name in values])
    failed = ~finite | (table > limits[:, np.newaxis])
    self.is_sound = bool(finite[:, -1].all())
    if not failed.any():
      return None
    i = int(failed.any(0).argmax())
    offending = {name: float(series[i]) for (name, series), bad
                 in zip(values.items(), failed[:, i], strict=True) if bad}
    return Failure(first_step + i, offending, self._recent_to(i), {
        name: self._limits[name] for name, value in offending.items() if math.isfinite(value)})

  def warning(self, failure: Failure) -> str | None:
    """One line about a failure, or None if there was one since the last log point."""
    if self._warned:
      return None
    self._warned = True
    return f"warning: {failure}"

  def at_log_point(self, step: int, means: Mapping[str, float]) -> str | None:
    """One line when samples have collapsed, once until they recover.

    Args:
      step: the number of the last step.
      means: of the scalars since the last log point.
    """
    self._warned = False
    if self.action == "off" or not {"sample_variance", "data_variance"} <= set(means):
      return None
    sample, data = means["sample_variance"], means["data_variance"]
    was_collapsed, self._collapsed = self._collapsed, sample < self.collapse * data
    if was_collapsed or not self._collapsed:
      return None
    return (f"warning: step {step}: mode collapse? sample_variance is {format_number(sample)}, and "
            f"data_variance {format_number(data)}: less than Guard.collapse = {self.collapse} "
            "of it")

  def rolled_back(self) -> None:
    """Forgets the steps that are undone."""
    self._recent.clear()
    self._warned = self._collapsed = False
    self.is_sound = True

  def _recent_to(self, last: int) -> History:
    """The recent steps up to the one of that place in the newest call."""
    *earlier, newest = self._recent
    return {name: np.concatenate([*(call[name] for call in earlier), series[:last + 1]])[-RECENT:]
            for name, series in newest.items()}

  def _check_names(self, names: list[str]) -> None:
    for name in self._limits:
      if name not in names:
        remedy = (" Set Guard.signals = True." if name.startswith(PREFIXES) and not self.signals
                  else nearest(name, names))
        raise UsageError(f"Guard.limits: the step logs no '{name}'.{remedy} It logs: "
                         f"{', '.join(names)}")


def _check(action: str, limits: Mapping[str, float] | None, max_rollbacks: int,
           collapse: float) -> None:
  if action not in ACTIONS:
    raise UsageError(f"Guard.action = {action!r}: no such action.{nearest(str(action), ACTIONS)} "
                     f"Write one of: {', '.join(ACTIONS)}")
  if limits is not None and not isinstance(limits, Mapping):
    raise UsageError(f"Guard.limits = {limits!r}: must be a dict, such as {{'generator': 50.0}}")
  for name, value in (limits or {}).items():
    if not _is_number(value) or math.isnan(value):
      raise UsageError(f"Guard.limits = {{{name!r}: {value!r}}}: must be a number, the highest "
                       "that the scalar may be")
  if not isinstance(max_rollbacks, int) or isinstance(max_rollbacks, bool) or max_rollbacks < 0:
    raise UsageError(f"Guard.max_rollbacks = {max_rollbacks!r}: must be a whole number of at least "
                     "0")
  if not _is_number(collapse) or not 0 <= collapse < 1:
    raise UsageError(f"Guard.collapse = {collapse!r}: must be a fraction in [0, 1)")


def _is_number(value: object) -> bool:
  return isinstance(value, int | float) and not isinstance(value, bool)
