"""The space of a sweep: from `grid`, `zip`, `random` and `seeds` to a list of points.

A point is `{name: value}`, its names sorted.
"""

import dataclasses
import itertools
import json
import math
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from replicator.errors import UsageError, nearest

if TYPE_CHECKING:
  from replicator.sweeps.sweep_file import SweepFile

Point = dict[str, Any]

SEED = "train.seed"
GIN_FILE = "gin_file"
"""The name that stands for gin files; its values are a path or a list of paths."""
_KINDS = ("uniform", "log_uniform", "int_uniform", "choice")
_DRAWS = 100  # At most so many draws for each point that is asked for; equal ones count once.


@dataclasses.dataclass(frozen=True)
class Distribution:
  """Where the values of one name come from.

  In a sweep file: `('uniform', low, high)`, `('log_uniform', low, high)`, `('int_uniform', low,
  high)` with both ends among the values, or `('choice', [values])`.
  """

  kind: str
  low: float = 0.0
  high: float = 0.0
  choices: Sequence = ()

  @classmethod
  def make(cls, where: str, name: str, written: Any) -> "Distribution":
    """From what the sweep file says.

    Raises:
      UsageError: it is no distribution; the message begins with `where`.
    """
    if not isinstance(written, list | tuple) or not written or not isinstance(written[0], str):
      raise UsageError(f"{where}: {written!r}: must be a distribution, as "
                       "('log_uniform', 1e-4, 1e-3) or ('choice', [16, 32])")
    kind, *rest = written
    if kind not in _KINDS:
      raise UsageError(f"{where}: '{kind}': no such distribution.{nearest(kind, _KINDS)} There "
                       f"are: {', '.join(_KINDS)}")
    if kind == "choice":
      check_values(where, name, rest[0] if len(rest) == 1 else rest)
      return cls(kind, choices=rest[0] if len(rest) == 1 else rest)
    check = is_whole if kind == "int_uniform" else _is_number
    if len(rest) != 2 or not all(map(check, rest)) or not rest[0] < rest[1]:
      what = "whole numbers" if kind == "int_uniform" else "numbers"
      raise UsageError(f"{where}: {written!r}: must be ('{kind}', low, high), two {what}")
    if kind == "log_uniform" and rest[0] <= 0:
      raise UsageError(f"{where}: {written!r}: its low end must be above 0")
    return cls(kind, *rest)

  def draw(self, source: random.Random) -> Any:
    """A value; numbers have four significant digits."""
    if self.kind == "choice":
      return self.choices[source.randrange(len(self.choices))]
    if self.kind == "int_uniform":
      return source.randint(int(self.low), int(self.high))
    if self.kind == "log_uniform":
      return self.rounded(math.exp(source.uniform(math.log(self.low), math.log(self.high))))
    return self.rounded(source.uniform(self.low, self.high))

  def rounded(self, value: float) -> float:
    """To four significant digits, for names that can be read."""
    return min(max(float(f"{value:.4g}"), self.low), self.high)


def is_whole(value: Any) -> bool:
  """Whether it is an int, and no bool."""
  return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
  return (is_whole(value) or isinstance(value, float)) and math.isfinite(value)


def check_values(where: str, name: str, values: Any) -> None:
  """Raises a UsageError, which begins with `where`, unless it is a list of different values."""
  if not isinstance(values, list | tuple):
    raise UsageError(f"{where} = {values!r}: must be a list of values")
  if not values:
    raise UsageError(f"{where}: the list is empty; write its values, or leave the name out")
  seen: set[str] = set()
  for value in values:
    if callable(value):
      raise UsageError(f"{where}: write references of gin in quotes, as "
                       f"'@{getattr(value, '__name__', 'name')}'")
    if isinstance(value, float) and not math.isfinite(value):
      raise UsageError(f"{where}: {value!r}: gin has no such number")
    if name == GIN_FILE:
      for path in gin_files_of(value):
        if not isinstance(path, str) or not os.path.isfile(path):
          raise UsageError(f"{where}: {path!r}: no such file")
    key = text_of(value)
    if key in seen:
      raise UsageError(f"{where}: {value!r} is there twice")
    seen.add(key)


def text_of(value: Any) -> str:
  """The same text for equal values, in every process."""
  return json.dumps(value, sort_keys=True, default=repr)


def gin_files_of(value: Any) -> list[str]:
  """A value of `gin_file` is one path, or a list of them."""
  return [value] if isinstance(value, str) else list(value)


def points(file: "SweepFile") -> list[Point]:
  """All points of a sweep file without `optuna`: the product of its dimensions, seeds last."""
  dimensions: list[list[Point]] = [[{name: value} for value in values]
                                   for name, values in file.grid.items()]
  if file.zip:
    dimensions.append([dict(zip(file.zip, row, strict=True))
                       for row in zip(*file.zip.values(), strict=True)])
  if file.random:
    dimensions.append(_draw(file.random, file.trials or 0, file.search_seed))
  if file.seeds:
    dimensions.append([{SEED: seed} for seed in file.seeds])
  return [_merged(parts) for parts in itertools.product(*dimensions)]


def _merged(parts: Sequence[Point]) -> Point:
  merged = {name: value for part in parts for name, value in part.items()}
  return {name: merged[name] for name in sorted(merged)}


def _draw(space: Mapping[str, Sequence], count: int, seed: int) -> list[Point]:
  """`count` different points. The first ones stay the same when more are asked for."""
  distributions = {name: Distribution.make(name, name, written)
                   for name, written in space.items()}

  def drawn() -> Iterator[Point]:
    for index in range(_DRAWS * count):
      # A source for each: a name that is added later changes nothing of the others.
      yield {name: distribution.draw(random.Random(f"{seed}/{name}/{index}"))
             for name, distribution in distributions.items()}

  different: dict[str, Point] = {}
  for point in drawn():
    different.setdefault(text_of(point), point)
    if len(different) == count:
      return list(different.values())
  raise UsageError(f"sweep.trials = {count}: sweep.random has only {len(different)} different "
                   "points")
