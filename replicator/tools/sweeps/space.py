"""The search space of a sweep: names and their values."""

import dataclasses
import json
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from replicator.configuration.literals import literal
from replicator.console import gin_files
from replicator.errors import UsageError, nearest

if TYPE_CHECKING:  # Only a process that creates trials needs Optuna.
  from optuna.distributions import BaseDistribution

Point = dict[str, Any]  # `{name: value}`, with sorted names.

SEED = "train.seed"
GIN_FILE = "gin_file"  # A special name for gin files; a value is a path or a list of paths.
_TYPES = {"uniform": (int, float), "log_uniform": (int, float), "int_uniform": (int,), "choice": ()}


@dataclasses.dataclass(frozen=True)
class Distribution:
  """The values of one name, in a sweep file's form and in Optuna's.

  In a sweep file: `('uniform', low, high)`, `('log_uniform', low, high)`, `('int_uniform', low,
  high)`, which includes both ends, or `('choice', [values])`.
  """

  kind: str
  low: float = 0.0
  high: float = 0.0
  choices: Sequence = ()

  @classmethod
  def listed(cls, where: str, name: str, values: Any) -> "Distribution":
    """Makes the distribution of a list of distinct values.

    Raises:
      UsageError: `values` is not such a list; the message begins with `where`.
    """
    if not isinstance(values, list | tuple):
      raise UsageError(f"{where} = {values!r}: must be a list of values")
    if not values:
      raise UsageError(f"{where}: the list is empty; add values, or remove the name")
    seen: set[str] = set()
    for value in values:
      for path in gin_files_of(value) if name == GIN_FILE else []:
        if not isinstance(path, str) or not os.path.isfile(gin_files.found(path)):
          raise UsageError(f"{where}: {path!r}: no such file")
      if text_of(value) in seen:
        raise UsageError(f"{where}: {value!r} appears twice")
      seen.add(text_of(value))
    return cls("choice", choices=values)

  @classmethod
  def parse(cls, where: str, name: str, written: Any) -> "Distribution":
    """Makes a distribution from its description in a sweep file.

    Raises:
      UsageError: `written` is not a distribution; the message begins with `where`.
    """
    if not isinstance(written, list | tuple) or not written or not isinstance(written[0], str):
      raise UsageError(f"{where}: {written!r}: must be a distribution, such as "
                       "('log_uniform', 1e-4, 1e-3) or ('choice', [16, 32])")
    kind, *rest = written
    if kind not in _TYPES:
      raise UsageError(f"{where}: '{kind}': no such distribution.{nearest(kind, _TYPES)} There "
                       f"are: {', '.join(_TYPES)}")
    if kind == "choice":
      return cls.listed(where, name, rest[0] if len(rest) == 1 else rest)
    if (len(rest) != 2 or not all(type(end) in _TYPES[kind] for end in rest)
        or not -math.inf < rest[0] < rest[1] < math.inf):
      what = "whole numbers" if kind == "int_uniform" else "numbers"
      raise UsageError(f"{where}: {written!r}: must be ('{kind}', low, high), two {what}")
    if kind == "log_uniform" and rest[0] <= 0:
      raise UsageError(f"{where}: {written!r}: its low end must be above 0")
    return cls(kind, *rest)

  def in_optuna(self) -> "BaseDistribution":
    """Returns Optuna's distribution; its choices are in the form of `held`."""
    from optuna import distributions
    if self.kind == "choice":
      return distributions.CategoricalDistribution(list(map(held, self.choices)))
    if self.kind == "int_uniform":
      return distributions.IntDistribution(int(self.low), int(self.high))
    return distributions.FloatDistribution(self.low, self.high, log=self.kind == "log_uniform")

  def recorded(self, value: Any) -> Any:
    """Returns the value read from JSON as `value`, with tuples restored; or raises a ValueError."""
    if self.kind == "choice":
      return self.choices[list(map(text_of, self.choices)).index(text_of(value))]
    if type(value) in _TYPES[self.kind] and self.low <= value <= self.high:
      return value
    raise ValueError(f"{value!r} is not in {self}")

  def scaled(self, value: Any, factor: float) -> Any:
    """Returns a value times a factor, clipped to the interval; leaves a choice unchanged."""
    if self.kind == "choice":
      return value
    if self.kind == "int_uniform":
      return int(min(max(round(value * factor), self.low), self.high))
    return self.value(value * factor)

  def value(self, in_optuna: Any) -> Any:
    """Converts Optuna's value `in_optuna`; rounds floats to four digits, for readable names."""
    if self.kind == "choice":
      return next(choice for choice in self.choices if held(choice) == in_optuna)
    if self.kind == "int_uniform":
      return in_optuna
    return min(max(float(f"{in_optuna:.4g}"), self.low), self.high)


def held(value: Any) -> int | float | str:
  """Converts a value to a form that Optuna can store: numbers as they are, others as gin text."""
  return value if type(value) in (int, float) else gin_text(value)


def gin_text(value: Any) -> str:
  """Returns a value as gin text; strings that start with @ or % are references, also in lists."""
  if isinstance(value, str) and value[:1] in ("@", "%"):
    return value
  if isinstance(value, list):
    return f"[{', '.join(map(gin_text, value))}]"
  if isinstance(value, tuple):
    return f"({', '.join(map(gin_text, value))}{',' * (len(value) == 1)})"
  return literal(value)


def text_of(value: Any) -> str:
  """Returns a value as JSON, the same for equal values in every process."""
  return json.dumps(value, sort_keys=True, default=repr)


def gin_files_of(value: Any) -> list[str]:
  """Returns the paths in a value of `gin_file`, which is a path or a list of paths."""
  return [value] if isinstance(value, str) else list(value)
