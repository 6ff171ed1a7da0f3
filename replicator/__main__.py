"""The `replicator` command, which is also `python -m replicator`.

    replicator run sngan --gin_file=sngan_digits.gin    # python -m experiments.sngan ...
    replicator doctor --experiment=experiments.sngan

Exit status: that of the command; 2 for a command that does not exist.
"""

import os
import runpy
import sys
from collections.abc import Sequence

from replicator.app import start
from replicator.console import programs
from replicator.console.command import status_of


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line `argv` (default: this process's); returns the exit status."""
  return status_of(_run, argv, describe=None)


def _run(words: list[str]) -> int:
  if not words or words[0] in ("--help", "-h"):
    print(_help())
    return 0
  sys.path.insert(0, os.getcwd())  # Like `python -m`.
  program, arguments = programs.program_of(words)
  sys.argv = [program, *arguments]
  if words[0] == "run":
    start.begin(programs.name_of(program), arguments)
  if program.endswith(".py"):
    sys.path.insert(0, os.path.dirname(os.path.abspath(program)))  # Like `python file.py`.
    runpy.run_path(program, run_name="__main__")
  else:
    runpy.run_module(program, run_name="__main__", alter_sys=True)
  return 0


def _help() -> str:
  lines = ["usage: replicator COMMAND ..., where COMMAND is", "",
           "  run NAME    trains: an experiment of `python -m experiments`, a module, or a file.py"]
  for command, module in programs.COMMANDS.items():
    line = programs.summary(programs.file_of(module)).rstrip(".:")
    lines.append(f"  {command:<11} {line[0].lower()}{line[1:]}")
  return "\n".join([*lines, "", "replicator COMMAND --help explains a command."])


if __name__ == "__main__":
  sys.exit(main())
