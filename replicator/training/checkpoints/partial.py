"""Restores the part of a checkpoint that fits: `--allow_partial_restore`."""

import pathlib
import sys
from collections.abc import Collection, Mapping

from replicator.console.formatting import listed
from replicator.errors import UsageError

import numpy as np

_NAMED = 3  # The most variables that an error names; there may be thousands.
_allowed = False


def allow(allowed: bool) -> None:
  """Sets whether a checkpoint may be restored if only a part of it fits the step."""
  global _allowed
  _allowed = allowed


def fitting(folder: pathlib.Path, values: Mapping[str, np.ndarray], mismatches: Mapping[str, str],
            remedy: str, groups: Collection[frozenset[str]] = ()) -> dict[str, np.ndarray]:
  """Returns the values that can be restored, by path; reports the others.

  Args:
    folder: the folder of the checkpoint.
    values: the values of the checkpoint, by path.
    mismatches: what is wrong with the values that do not fit, by path.
    remedy: what to do if they must fit.
    groups: paths of variables that are restored together or not at all; see
      `variables.together_in`.

  Raises:
    UsageError: there are mismatches, and a partial restore is not allowed.
  """
  if mismatches and not _allowed:
    named = [f"'{path}' {what}" for path, what in mismatches.items()]
    if len(named) > _NAMED:
      named[_NAMED:] = [f"{len(named) - _NAMED} more"]
    raise UsageError(f"{folder}: {len(mismatches)} variables do not fit this step: "
                     f"{', '.join(named)}; {remedy}")
  for path, what in mismatches.items():
    _warn(f"'{path}' {what}; it is not restored")
  left = set(mismatches)
  while more := {path for group in groups if group & left for path in group - left}:
    left |= more
  if others := [f"'{path}'" for path in sorted(left - set(mismatches))]:
    _warn(f"{listed(others)}: useful only together with those; not restored either")
  return {path: value for path, value in values.items() if path not in left}


def refuse(problem: str, remedy: str) -> None:
  """Raises a UsageError about what was restored, or warns if a partial restore is allowed."""
  if not _allowed:
    raise UsageError(f"{problem}; {remedy}")
  _warn(problem)


def _warn(line: str) -> None:
  print(f"warning: --allow_partial_restore: {line}", file=sys.stderr, flush=True)
