"""A sweep's space: its points, `{name: value}` with sorted names, and their distributions."""

import dataclasses
import json
import math
import os
import random
from collections.abc import Sequence
from typing import Any

from replicator.console.formatting import format_number
from replicator.errors import UsageError, nearest

Point = dict[str, Any]

SEED = "train.seed"
GIN_FILE = "gin_file"  # Stands for gin files; its values are a path or a list of paths.
_KINDS = ("uniform", "log_uniform", "int_uniform", "choice")


@dataclasses.dataclass(frozen=True)
class Distribution:
  """The distribution of one name's values.

  In a sweep file: `('uniform', low, high)`, `('log_uniform', low, high)`, `('int_uniform', low,
  high)`, which includes both ends, or `('choice', [values])`.
  """

  kind: str
  low: float = 0.0
  high: float = 0.0
  choices: Sequence = ()

  @classmethod
  def make(cls, where: str, name: str, written: Any) -> "Distribution":
    """Makes the distribution that a sweep file describes.

    Raises:
      UsageError: `written` is not a distribution; the message begins with `where`.
    """
    if not isinstance(written, list | tuple) or not written or not isinstance(written[0], str):
      raise UsageError(f"{where}: {written!r}: must be a distribution, as "
                       "('log_uniform', 1e-4, 1e-3) or ('choice', [16, 32])")
    kind, *rest = written
    if kind not in _KINDS:
      raise UsageError(f"{where}: '{kind}': no such distribution.{nearest(kind, _KINDS)} There "
                       f"are: {', '.join(_KINDS)}")
    if kind == "choice":
      choices = rest[0] if len(rest) == 1 else rest
      check_values(where, name, choices)
      return cls(kind, choices=choices)
    is_end = is_whole if kind == "int_uniform" else is_number
    if len(rest) != 2 or not all(map(is_end, rest)) or not -math.inf < rest[0] < rest[1] < math.inf:
      what = "whole numbers" if kind == "int_uniform" else "numbers"
      raise UsageError(f"{where}: {written!r}: must be ('{kind}', low, high), two {what}")
    if kind == "log_uniform" and rest[0] <= 0:
      raise UsageError(f"{where}: {written!r}: its low end must be above 0")
    return cls(kind, *rest)

  def draw(self, source: random.Random) -> Any:
    """Draws a value; floats have four significant digits."""
    if self.kind == "choice":
      return self.choices[source.randrange(len(self.choices))]
    if self.kind == "int_uniform":
      return source.randint(int(self.low), int(self.high))
    if self.kind == "log_uniform":
      return self.rounded(math.exp(source.uniform(math.log(self.low), math.log(self.high))))
    return self.rounded(source.uniform(self.low, self.high))

  def rounded(self, value: float) -> float:
    """Rounds to four significant digits, so that names stay readable."""
    return min(max(float(f"{value:.4g}"), self.low), self.high)


def is_whole(value: Any) -> bool:
  """Whether the value is an int and not a bool."""
  return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
  """Whether the value is an int or a float and not a bool."""
  return is_whole(value) or isinstance(value, float)


def check_values(where: str, name: str, values: Any) -> None:
  """Raises a UsageError that begins with `where`, unless `values` is a list of different values."""
  if not isinstance(values, list | tuple):
    raise UsageError(f"{where} = {values!r}: must be a list of values")
  if not values:
    raise UsageError(f"{where}: the list is empty; write its values, or leave the name out")
  seen: set[str] = set()
  for value in values:
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
  """The value as JSON, the same for equal values in every process."""
  return json.dumps(value, sort_keys=True, default=repr)


def short_text(value: Any) -> str:
  """The value for display: a float with four digits, a string without quotes, else JSON."""
  if isinstance(value, float):
    return format_number(value)
  return value if isinstance(value, str) else text_of(value)


def gin_files_of(value: Any) -> list[str]:
  """The paths in a value of `gin_file`, which is one path or a list of paths."""
  return [value] if isinstance(value, str) else list(value)
