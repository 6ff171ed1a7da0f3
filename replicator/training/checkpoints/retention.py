"""Which checkpoints a run keeps."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Literal

from replicator.errors import UsageError, nearest

import gin


@gin.configurable(module="replicator")
@dataclasses.dataclass(frozen=True)
class Checkpoints:
  """Which checkpoints a run keeps; `replicator.train(..., checkpoints=Checkpoints(keep_last=5))`.

  Attributes:
    keep_last: the number of newest checkpoints to keep.
    keep_every: checkpoints at multiples of this step are kept too; 0 for none.
    keep_best: the name of a scalar, such as 'eval/reconstruction_error'. Among the checkpoints at
      whose step it was logged, the best one is kept too. For a scalar of evaluations, step 0 is
      saved too, since it may be the best.
    best_is: 'min' or 'max': which value of that scalar is best.

  Raises:
    UsageError: a number is too small.
  """

  keep_last: int = 3
  keep_every: int = 0
  keep_best: str | None = None
  best_is: Literal["min", "max"] = "min"

  def __post_init__(self) -> None:
    for name, lowest in (("keep_last", 1), ("keep_every", 0)):
      if getattr(self, name) < lowest:
        raise UsageError(f"Checkpoints.{name} = {getattr(self, name)}: must be at least {lowest}")

  def obsolete(self, steps: list[int], scalars_at: Callable[[int], Mapping[str, float]]
               ) -> list[int]:
    """Returns the steps whose checkpoints can be removed.

    `steps` are those of all checkpoints, in ascending order. `scalars_at` returns the scalars that
    were logged at a step.
    """
    best = self.best(steps, scalars_at)
    kept = {*steps[-self.keep_last:], *([] if best is None else [best])}
    if self.keep_every:
      kept |= {step for step in steps if step % self.keep_every == 0}
    return [step for step in steps if step not in kept]

  def best(self, steps: list[int], scalars_at: Callable[[int], Mapping[str, float]]
           ) -> int | None:
    """Returns the step of the best checkpoint; of equal ones, the earliest.

    Returns None if `keep_best` is not set, or its scalar was not logged at any of these steps.
    """
    if not self.keep_best:
      return None
    values = {step: scalars_at(step).get(self.keep_best, math.nan) for step in steps}
    found = [step for step in steps if not math.isnan(values[step])]
    best = min if self.best_is == "min" else max
    return best(found, key=values.__getitem__) if found else None

  @property
  def is_of_evaluations(self) -> bool:
    """Whether evaluations decide which checkpoint is best; it may be the one at step 0."""
    return (self.keep_best or "").startswith("eval/")

  def check_logged(self, names: list[str], evaluated: bool) -> None:
    """Raises a UsageError if the scalar of `keep_best` should be among `names` but is not.

    `names` are the scalars of an evaluation if `evaluated`, otherwise those of a log point.
    """
    metric = self.keep_best
    if metric and metric not in names and metric.startswith("eval/") == evaluated:
      instead = f"Choose one of: {', '.join(names)}" if names else "This run has no evaluation"
      raise UsageError(f"Checkpoints.keep_best = '{metric}': no scalar of that name is logged."
                       f"{nearest(metric, names)} {instead}")
