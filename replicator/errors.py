"""The one exception that means: what the user wrote cannot work, and here is what to write."""

import difflib
import os
import re
import sysconfig
import traceback
from collections.abc import Iterable

PREEMPTED_STATUS = 42  # of a run that was asked to stop, and saved
_STDLIB = sysconfig.get_paths()["stdlib"]


class UsageError(Exception):
  """Bad input, told in one line: what was written, what is wrong, what to write instead.

  The command line prints the message alone and ends with exit status 2; a traceback
  appears only with `--debug`.
  """


class RunFailed(Exception):
  """A run that cannot go on, told in one line; the command line ends with exit status 1."""


def nearest(word: str, candidates: Iterable[str]) -> str:
  """A hint such as ` Did you mean 'mirrored'?`, or the empty string when nothing is near."""
  names = list(candidates)
  near = difflib.get_close_matches(word.lower(), {name.lower() for name in names}, 1, cutoff=0.5)
  # Of names that differ in their capitals alone, the one that was written most alike.
  alike = difflib.get_close_matches(word, [name for name in names if name.lower() in near], 1, 0.0)
  return f" Did you mean '{alike[0]}'?" if alike else ""


def first_line(error: BaseException) -> str:
  """Of its message; gin adds lines to that of whatever passes through a configurable."""
  return (str(error).strip() or type(error).__name__).splitlines()[0]


def is_foreign(file: str) -> bool:
  """Whether a source file is Python's or an installed package's, and not the user's own."""
  return "site-packages" in file or _STDLIB in file


def in_one_line(error: Exception) -> str:
  """The last line of the user's own code that the error passed, its type and its message."""
  frames = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
  lines = [line for line in str(error).splitlines() if line.strip()] or [""]
  reason = lines[0]
  if "Graph execution error" in reason:  # Compiled code tells its places in the message.
    frames += re.findall(r'File "(.+?)", line (\d+)', str(error))
    reason = next((line for line in lines[2:] if not line.startswith("  ")), reason)
  own = [frame for frame in frames if os.path.isfile(frame[0]) and not is_foreign(frame[0])]
  where = f"{os.path.relpath(own[-1][0])}:{own[-1][1]}: " if own else ""
  return f"{where}{type(error).__name__}: {reason}"


class Preempted(Exception):
  """The run was asked to stop, and saved its state; carries the step."""

  def __init__(self, step: int):
    super().__init__(f"stopped at step {step}, which is saved")
    self.step = step
