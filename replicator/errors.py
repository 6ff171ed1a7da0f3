"""Exceptions that a user reads as one line, and what helps to write such lines."""

import difflib
import os
import re
import sysconfig
import traceback
from collections.abc import Iterable

USAGE_STATUS = 2  # The exit status after a bad command line or configuration.
PREEMPTED_STATUS = 42  # The exit status of a run that was asked to stop, and saved.
_STDLIB = sysconfig.get_paths()["stdlib"]


class UsageError(Exception):
  """Bad input, in one line: what the user wrote, what is wrong, what to write instead.

  The command line prints the message alone and ends with status 2; `--debug` adds a traceback.
  """


class RunFailed(Exception):
  """A run that cannot go on, in one line; the command line ends with exit status 1."""


class Preempted(Exception):
  """The run was asked to stop, and saved its state at `step`."""

  def __init__(self, step: int):
    super().__init__(f"stopped at step {step}, which is saved")
    self.step = step


def nearest(word: str, candidates: Iterable[str]) -> str:
  """A hint such as ` Did you mean 'mirrored'?`, or the empty string if no candidate is similar."""
  names = list(candidates)
  near = difflib.get_close_matches(word.lower(), {name.lower() for name in names}, 1, cutoff=0.5)
  # Among names that differ only in their capitals, the one whose capitals are most alike.
  alike = difflib.get_close_matches(word, [name for name in names if name.lower() in near], 1, 0.0)
  return f" Did you mean '{alike[0]}'?" if alike else ""


def first_line(error: BaseException) -> str:
  """The first line of the error's message; gin appends lines of its own."""
  return (str(error).strip() or type(error).__name__).splitlines()[0]


def is_foreign(file: str) -> bool:
  """Whether a source file belongs to Python or an installed package, and not to the user."""
  return "site-packages" in file or _STDLIB in file


def in_one_line(error: Exception) -> str:
  """The error's type and message, after the innermost line of the user's own code."""
  frames = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
  lines = [line for line in str(error).splitlines() if line.strip()] or [""]
  reason = lines[0]
  if "Graph execution error" in reason:  # Compiled code lists its places in the message.
    frames += re.findall(r'File "(.+?)", line (\d+)', str(error))
    reason = next((line for line in lines[2:] if not line.startswith("  ")), reason)
  own = [frame for frame in frames if os.path.isfile(frame[0]) and not is_foreign(frame[0])]
  where = f"{os.path.relpath(own[-1][0])}:{own[-1][1]}: " if own else ""
  return f"{where}{type(error).__name__}: {reason}"
