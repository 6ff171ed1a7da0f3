"""The exit status of a command, and the one line that it prints when it fails."""

import sys
import traceback
from collections.abc import Callable

from replicator.errors import USAGE_STATUS, RunFailed, UsageError, chain_of, first_line

INTERRUPTED_STATUS = 130  # 128 + SIGINT, as shells report a program that Ctrl-C ended.


def exit_status(run: Callable[[], int], *, prefix: str = "error", debug: bool = False,
                describe: Callable[[BaseException], str] | None = None) -> int:
  """Calls `run`; returns its status, or prints `error: LINE` and returns that of its error.

  The status is 2 for a UsageError, 1 for a RunFailed or any other exception, 130 for Ctrl-C.
  `prefix` begins the line; with `debug` the traceback is printed too. `describe` returns the line
  for any other exception; without it such an exception is raised.
  """
  try:
    return run()
  except (Exception, KeyboardInterrupt) as error:
    match chain_of(error)[-1]:
      case KeyboardInterrupt():
        line, status = "interrupted", INTERRUPTED_STATUS
      case UsageError():
        line, status = first_line(error), USAGE_STATUS
      case RunFailed():
        line, status = first_line(error), 1
      case _ if describe is None:
        raise
      case _:
        line, status = describe(error), 1
    if debug:
      traceback.print_exc()
    print(f"{prefix}: {line}", file=sys.stderr)
    return status
