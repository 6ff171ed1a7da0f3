"""The divergence guard: finds steps whose numbers are not finite, or above a limit."""

import collections
import dataclasses
import math
from collections.abc import Mapping
from typing import Literal

from replicator.console.formatting import format_number
from replicator.errors import UsageError, nearest

import gin
import numpy as np

LIMIT = 1e19  # The largest magnitude of any scalar: the square of a larger float32 is infinite.
RECENT = 20  # The number of steps that a `Divergence` keeps.

History = dict[str, np.ndarray]  # {name: [steps]}


@dataclasses.dataclass(frozen=True)
class Divergence:
  """A step with a number that is not finite, or above its limit."""

  step: int  # Counted from 1, as in the log.
  offending: dict[str, float]  # The scalars that diverged.
  recent: History  # All scalars of this step and of the steps before it, oldest first.
  reason: str = ""  # Text that follows the first offending value.

  def __str__(self) -> str:
    name, value = next(iter(self.offending.items()))
    more = f" (and {len(self.offending) - 1} more)" if len(self.offending) > 1 else ""
    return f"step {self.step}: {name} is {format_number(value)}{self.reason}{more}"


@gin.configurable(module="replicator")
class Guard:
  """The policy for steps whose numbers are not finite, or above a limit.

  The numbers are the scalars that the step returns and its signals, averaged over replicas, so all
  workers make the same decision. Gradients that are not finite show in `grad_norm/...`, unless
  their update is skipped by design. A step that is not finite is not saved.

  A step can also name scalars that may collapse, in an attribute `may_collapse` such as
  `{"mode collapse": ("sample_variance", "data_variance")}`. The guard warns when the first falls
  far below the second. It does not warn before the first has been above that level once, because a
  new generator's samples hardly vary.

  Args:
    action: 'stop' ends the run with status 1; 'warn' logs a warning, at most once per log point;
      'roll_back' returns to the last checkpoint, and continues with different random draws and
      with the data after the diverged batch; 'off' does nothing. A stop and a rollback write the
      batch and the numbers to `failures/step-NNNNNNNN/`.
    limits: upper limits for individual scalars, such as `{'grad_norm/generator': 1e4}`. The
      magnitude of any other scalar is limited to 1e19, which only a broken run exceeds.
    max_rollbacks: how many times a run is rolled back before it is stopped.
    collapse: the fraction of the second scalar below which the first counts as collapsed; both are
      means since the last log point. 0 for never.
    signals: whether to log the gradient norms and singular values of `divergence.diagnostics`.

  Raises:
    UsageError: a setting is invalid.
  """

  def __init__(self, action: Literal["stop", "warn", "roll_back", "off"] = "stop",
               limits: Mapping[str, float] | None = None, max_rollbacks: int = 3,
               collapse: float = 0.05, signals: bool = True):
    if max_rollbacks < 0:
      raise UsageError(f"Guard.max_rollbacks = {max_rollbacks}: must be at least 0")
    if not 0 <= collapse < 1:
      raise UsageError(f"Guard.collapse = {collapse}: must be a fraction in [0, 1)")
    self.action = action
    self.max_rollbacks = max_rollbacks
    self.collapse = collapse
    self.signals = signals
    self.is_sound = True  # Whether the newest step was finite; True if the guard is off.
    self._limits = dict(limits or {})
    self._recent: collections.deque[History] = collections.deque(maxlen=RECENT)
    self._warned = False
    self._above: set[str] = set()  # What has been above the level of collapse.

  def check_supported(self, strategy: str) -> None:
    """Raises a UsageError if the strategy with this name cannot return to a checkpoint."""
    if self.action == "roll_back" and strategy == "parameter_server":
      raise UsageError("Guard.action = 'roll_back': under 'parameter_server', steps overtake each "
                       "other, so no step is the last good one; use 'stop' or 'warn'")

  def check_limits(self, names: list[str]) -> None:
    """Raises a UsageError if a limit is set for a scalar that is not among the logged `names`."""
    if self.action == "off":
      return
    for name in self._limits:
      if name not in names:
        raise UsageError(f"Guard.limits: the step does not log '{name}'."
                         f"{nearest(name, names)} It logs: {', '.join(names)}")

  def divergence_in(self, first_step: int, values: History) -> Divergence | None:
    """Finds the first divergence among the steps of one call; `first_step` is counted from 1.

    Raises a UsageError if a limit is set for a scalar that is not logged.
    """
    if self.action == "off":
      return None
    if not self._recent:
      self.check_limits(list(values))
    self._recent.append(values)
    self.is_sound = all(math.isfinite(series[-1]) for series in values.values())
    for i in range(len(next(iter(values.values())))):
      offending = {name: float(series[i]) for name, series in values.items()
                   if self._is_broken(name, series[i])}
      if offending:
        return Divergence(first_step + i, offending, self._recent_until(i),
                          self._reason(*next(iter(offending.items()))))
    return None

  def _is_broken(self, name: str, value: float) -> bool:
    size = value if name in self._limits else abs(value)
    return not math.isfinite(value) or size > self._limits.get(name, LIMIT)

  def warning(self, divergence: Divergence) -> str | None:
    """Returns a warning about a divergence; None if one was given since the last log point."""
    if self._warned:
      return None
    self._warned = True
    return f"warning: {divergence}"

  def at_log_point(self, step: int, means: Mapping[str, float],
                   may_collapse: Mapping[str, tuple[str, str]]) -> list[str]:
    """Returns a warning for each new collapse, given the `means` since the last log point.

    Raises a UsageError if `may_collapse` names a scalar that is not logged.
    """
    self._warned = False
    if self.action == "off":
      return []
    lines = []
    for what, names in may_collapse.items():
      for name in names:
        if name not in means:
          raise UsageError(f"the step's may_collapse[{what!r}]: the step does not log '{name}'."
                           f"{nearest(name, means)} It logs: {', '.join(means)}")
      value, reference = (means[name] for name in names)
      if value >= self.collapse * reference:
        self._above.add(what)
      elif what in self._above and value < self.collapse * reference:
        self._above.remove(what)
        lines.append(
            f"warning: step {step}: {what}? {names[0]} fell below Guard.collapse = {self.collapse} "
            f"of {names[1]}: {format_number(value)} of {format_number(reference)}")
    return lines

  def forget(self) -> None:
    """Forgets the steps so far, after a checkpoint was restored."""
    self._recent.clear()
    self.is_sound = True

  def _reason(self, name: str, value: float) -> str:
    if not math.isfinite(value):
      return ""
    if name in self._limits:
      return f", over its limit of {format_number(self._limits[name])}"
    return f", beyond {LIMIT:g}, the limit for scalars that are not in Guard.limits"

  def _recent_until(self, last: int) -> History:
    *earlier, newest = self._recent
    return {name: np.concatenate([*(call[name] for call in earlier if name in call),
                                  series[:last + 1]])[-RECENT:]
            for name, series in newest.items()}
