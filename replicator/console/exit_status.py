"""The exit status of a command, and the one line that it prints when it fails."""

import sys
import traceback
from collections.abc import Callable

from replicator.errors import USAGE_STATUS, RunFailed, UsageError, first_line

INTERRUPTED_STATUS = 130
"""128 + SIGINT, as shells report a program that Ctrl-C ended."""


def exit_status(run: Callable[[], int], *, prefix: str = "error", debug: bool = False,
                describe: Callable[[Exception], str] | None = None) -> int:
  """Calls `run`; returns its status, or prints `error: LINE` and returns that of its error.

  The status is 2 for a UsageError, 1 for a RunFailed or any other exception, 130 for Ctrl-C.

  Args:
    run: the command.
    prefix: what the line begins with.
    debug: prints the traceback too.
    describe: returns the line for any other exception; without it such an exception is raised.
  """
  try:
    return run()
  except (Exception, KeyboardInterrupt) as error:
    line, status = _line_and_status(error, describe)
    if debug:
      traceback.print_exc()
    print(f"{prefix}: {line}", file=sys.stderr)
    return status


def _line_and_status(error: Exception | KeyboardInterrupt,
                     describe: Callable[[Exception], str] | None) -> tuple[str, int]:
  match error:
    case KeyboardInterrupt():
      return "interrupted", INTERRUPTED_STATUS
    case UsageError():
      return first_line(error), USAGE_STATUS
    case RunFailed():
      return first_line(error), 1
  if describe is None:
    raise error
  return describe(error), 1
