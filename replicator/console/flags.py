"""The command line: the name of the running program, and a parser that raises one-line errors."""

import argparse
import pathlib
import sys
from typing import NoReturn

from replicator.errors import UsageError, nearest


class Parser(argparse.ArgumentParser):
  """Raises a UsageError, with a hint, for a bad command line."""

  def error(self, message: str) -> NoReturn:
    """What argparse calls."""
    flags = [option for action in self._actions for option in action.option_strings]
    unknown = message.partition("unrecognized arguments: ")[2].partition("=")[0].split(" ")[0]
    raise UsageError(f"command line: {message}.{nearest(unknown, flags) if unknown else ''}")


def experiment() -> str:
  """The name of the running experiment: of its module or file."""
  spec = sys.modules["__main__"].__spec__
  return spec.name.rpartition(".")[2] if spec else pathlib.Path(sys.argv[0]).stem


def program() -> list[str]:
  """The words that start this program: `python -m package.module` or `python file.py`."""
  spec = sys.modules["__main__"].__spec__
  return ["python", "-m", spec.name] if spec else ["python", sys.argv[0]]
