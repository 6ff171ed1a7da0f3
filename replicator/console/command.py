"""The frame of a command: its words, its exit status, and the line of an error."""

import sys
from collections.abc import Callable, Sequence

from replicator.console.error_line import in_one_line
from replicator.console.exit_status import exit_status


def status_of(work: Callable[[list[str]], int], argv: Sequence[str] | None,
              describe: Callable[[BaseException], str] = in_one_line) -> int:
  """Calls `work` with the words `argv` (default: this process's); returns the exit status.

  Any error is one line, that of `describe`; `--debug` among the words shows its traceback, too.
  """
  words = list(sys.argv[1:] if argv is None else argv)
  return exit_status(lambda: work(words), debug="--debug" in words, describe=describe)
