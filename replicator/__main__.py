"""The `replicator` command: each of its commands is a module that `python -m` runs, too.

    replicator run sngan --gin_file=sngan_digits.gin    # python -m experiments.sngan ...
    replicator doctor --experiment=experiments.sngan    # python -m replicator.doctor ...

Exit status: that of the command; 2 for a command that does not exist.
"""

import os
import sys
from collections.abc import Sequence

from replicator.console import programs
from replicator.console.command import status_of


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line `argv` (default: this process's); returns the exit status."""
  return status_of(_start, argv, describe=None)


def _start(words: list[str]) -> int:
  if not words or words[0] in ("--help", "-h"):
    print(_help())
    return 0
  sys.path.insert(0, os.getcwd())  # As `python -m` does.
  command = programs.python_words(words)
  sys.stdout.flush()
  # The process becomes that command, which so gets all signals, and its name in all that it writes.
  os.execv(sys.executable, [sys.executable, *command])


def _help() -> str:
  lines = ["usage: replicator COMMAND ..., where COMMAND is", "",
           "  run NAME    trains: an experiment of `python -m experiments`, a module, or a file.py"]
  for command, module in programs.COMMANDS.items():
    line = programs.summary(programs.file_of(module)).rstrip(".:")
    lines.append(f"  {command:<11} {line[0].lower()}{line[1:]}")
  return "\n".join([*lines, "", "replicator COMMAND --help explains a command."])


if __name__ == "__main__":
  sys.exit(main())
