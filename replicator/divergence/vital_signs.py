"""The vital signs of a run: numbers that are finite, but say that it has exploded or is dead.

A scalar has exploded if it is a million times the median of its first values, and got there by a
jump of that size: a count, or a sum over steps, only grows. Values of 0 are no first values, since
a loss may begin later; and nothing below a million has exploded, since a loss may begin near 0.

A network is dead if its gradients were 0 for a hundred steps in a row. While half of the networks
learn, it may rest: if a loss became 0 with its gradients, as the hinge loss of a discriminator that
is right by a margin, nothing is left to learn for now. If it never learned, its time may come.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping

import numpy as np

from replicator.console.formatting import format_number

FIRST = 20
EXPLODED = 1e6
DEAD = 100
NORM = "grad_norm/"


@dataclasses.dataclass
class _Scalar:
  """What is known of a scalar."""

  first: list[float] | None = dataclasses.field(default_factory=list)  # Sizes; None if complete.
  usual: float = 0.0  # Their median.
  last: float = 0.0
  zero_for: int = 0  # At how many steps in a row it was 0, up to the newest.
  exploded: bool = False  # Whether that was said.
  dead: bool = False      # The same.

  def take(self, value: float) -> bool:
    """Takes the finite value of the next step; returns whether it explodes with it."""
    most = EXPLODED * max(self.usual, 1.0)
    jumps = abs(value) > most and abs(value - self.last) > most and self.usual > 0
    self.last = value
    if value:
      self.zero_for, self.dead = 0, False
      if self.first is not None:
        self.first.append(abs(value))
        self.usual = statistics.median(self.first)
        if len(self.first) == FIRST:
          self.first = None
    else:
      self.zero_for += 1
    return jumps


class VitalSigns:
  """Watches the scalars of a run, step by step; goes on from a `state`."""

  def __init__(self, state: Mapping[str, dict] | None = None):
    self._scalars = {name: _Scalar(**known) for name, known in (state or {}).items()}

  def state(self) -> dict[str, dict]:
    """What a checkpoint keeps, as JSON."""
    return {name: dataclasses.asdict(scalar) for name, scalar in self._scalars.items()}

  def alarms(self, values: Mapping[str, np.ndarray]) -> list[dict[str, str]]:
    """What begins to be wrong in each of some steps, in words that follow a scalar's value.

    `values` are `{name: [steps]}`; each step has a `{name: words}`, which is empty if all is well.
    """
    scalars = {name: self._scalars.setdefault(name, _Scalar()) for name in values}
    steps = zip(*(series.tolist() for series in values.values()), strict=True)
    return [_explosions(scalars, step) | _deaths(scalars) for step in steps]


def _explosions(scalars: dict[str, _Scalar], step: tuple[float, ...]) -> dict[str, str]:
  """Takes the values of a step."""
  found = {}
  for (name, scalar), value in zip(scalars.items(), step, strict=True):
    usual = scalar.usual
    # The guard itself speaks of numbers that are not finite.
    if math.isfinite(value) and scalar.take(value) and not scalar.exploded:
      scalar.exploded = True
      found[name] = f", and was about {format_number(usual)} at first: it has exploded"
  return found


def _deaths(scalars: dict[str, _Scalar]) -> dict[str, str]:
  silent = [name for name, scalar in scalars.items() if scalar.zero_for >= DEAD and not scalar.dead]
  if not silent:
    return {}
  norms = {name: scalar for name, scalar in scalars.items() if name.startswith(NORM)}
  others = [scalar for name, scalar in scalars.items() if name not in norms]
  half_learn = 2 * sum(norm.zero_for < DEAD for norm in norms.values()) >= len(norms)
  found = {}
  for name in filter(norms.__contains__, silent):
    norm = norms[name]
    with_its_loss = any(other.zero_for == norm.zero_for for other in others)
    if not with_its_loss or (norm.usual > 0 and not half_learn):
      norm.dead = True
      found[name] = f" for {norm.zero_for} steps in a row: its network does not learn"
  return found
