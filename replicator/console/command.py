"""The frame of a command: its words, its exit status, and the line that it prints on failure."""

import sys
import traceback
from collections.abc import Callable, Sequence

from replicator.console.error_line import in_one_line
from replicator.errors import USAGE_STATUS, RunFailed, UsageError, chain_of, first_line

INTERRUPTED_STATUS = 130  # 128 + SIGINT, as shells report a program that Ctrl-C ended.


def status_of(work: Callable[[list[str]], int], argv: Sequence[str] | None,
              describe: Callable[[BaseException], str] | None = in_one_line,
              prefix: str = "error") -> int:
  """Calls `work` with the words `argv` (default: this process's); returns the exit status.

  That is the one that `work` returns, or after a line `error: ...` that of an exception: 2 for a
  UsageError, 1 for a RunFailed or any other, 130 for Ctrl-C. `--debug` among the words shows the
  traceback, too. `describe` returns the line for an exception that has none of its own; a command
  without it has no `--debug`, and such an exception is raised.
  """
  words = list(sys.argv[1:] if argv is None else argv)
  try:
    return work(words)
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
    if describe and "--debug" in words:
      traceback.print_exc()
    print(f"{prefix}: {line}", file=sys.stderr)
    return status
