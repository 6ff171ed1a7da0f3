"""The shared parts of all commands: flags, name, exit status, and error line."""

import argparse
import difflib
import io
import os
import pathlib
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from replicator.console.error_line import in_one_line
from replicator.console.programs import COMMANDS
from replicator.errors import USAGE_STATUS, RunFailed, UsageError, chain_of, first_line, nearest

INTERRUPTED_STATUS = 130  # 128 + SIGINT, as shells report a program ended by Ctrl-C.


def status_of(work: Callable[[list[str]], int], argv: Sequence[str] | None,
              describe: Callable[[BaseException], str] | None = in_one_line,
              prefix: str = "error") -> int:
  """Calls `work` with the arguments `argv` (default: this process's); returns the exit status.

  The status is what `work` returns. After an exception, it prints a line `error: ...`, and the
  status is 2 for a UsageError, 130 for Ctrl-C and 1 for anything else. `--debug` in `argv`
  also shows the traceback. `describe` returns the line for an exception that is not a one-line
  error. Without `describe`, a command has no `--debug`, and such an exception is raised.
  """
  words = list(sys.argv[1:] if argv is None else argv)
  if isinstance(sys.stdout, io.TextIOWrapper):  # File names may have bytes in any encoding.
    sys.stdout.reconfigure(errors="backslashreplace")
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


class Parser(argparse.ArgumentParser):
  """A parser that raises a UsageError with a hint or the `usage`, and allows no abbreviations."""

  def __init__(self, prog: str | None = None, **options: Any):
    super().__init__(prog=prog or shlex.join(program()), allow_abbrev=False, **options)

  def add_configuration(self) -> None:
    """Adds `--gin_file`, `--gin_param` and `--debug`."""
    self.add_argument("--gin_file", action="append", default=[], metavar="F",
                      type=os.path.expanduser,
                      help="a gin file; may be repeated: later files override earlier ones")
    self.add_argument("--gin_param", action="append", default=[], metavar='"a.b = 1"',
                      help="a gin binding; overrides the files")
    self.add_argument("--debug", action="store_true", help="show tracebacks")

  def error(self, message: str) -> NoReturn:
    """Raises the UsageError; called by argparse."""
    if self.usage:
      usage = self.format_usage().removeprefix("usage: ").strip()
      raise UsageError(f"command line: {message}; usage: {usage}")
    flags = [option for action in self._actions for option in action.option_strings]
    unknown = message.partition("unrecognized arguments: ")[2]
    raise UsageError(f"command line: {message}.{_meant(unknown, flags) if unknown else ''}")


def _meant(words: str, flags: list[str]) -> str:
  """Returns a hint about what unrecognized words may mean."""
  first = words.split(" ")[0]
  binding = re.match(r"-*([\w/]+(?:\.\w+)+)\s*=\s*(\S+)", words)
  if "--gin_file" in flags and first.endswith(".gin") and not first.startswith("-"):
    return f" Write --gin_file={first}"
  if "--gin_param" in flags and binding:
    return f' Write --gin_param="{binding[1]} = {binding[2]}"'
  name, _, value = first.lstrip("-").partition("=")
  names = [flag.lstrip("-") for flag in flags]
  # `--steps=10` is more likely a setting than `--from_step`.
  if value and "--gin_param" in flags and not difflib.get_close_matches(name, names, 1, 0.75):
    return f' A setting is written as --gin_param="owner.{name} = {value}"'
  return nearest(name, names).replace("'", "'--", 1)


def experiment() -> str:
  """Returns the name of the running experiment: that of its module or file."""
  name = _module()
  return name.rpartition(".")[2] if name else pathlib.Path(sys.argv[0]).stem


def program() -> list[str]:
  """Returns the command of this program: `replicator X`, `python -m NAME` or `python file.py`."""
  name = _module()
  for command, module in COMMANDS.items():
    if module == name:
      return ["replicator", command]
  return ["python", "-m", name] if name else ["python", sys.argv[0]]


def _module() -> str:
  """Returns the module that `python -m` runs, such as `replicator.doctor`; '' for a file."""
  spec = sys.modules["__main__"].__spec__
  return spec.name.removesuffix(".__main__") if spec else ""
