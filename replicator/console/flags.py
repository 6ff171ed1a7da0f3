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
  name = _module()
  return name.rpartition(".")[2] if name else pathlib.Path(sys.argv[0]).stem


def program() -> list[str]:
  """The words that start this program: `python -m package.module` or `python file.py`."""
  name = _module()
  return ["python", "-m", name] if name else ["python", sys.argv[0]]


def _module() -> str:
  """The module that `python -m` runs, such as `replicator.doctor`; empty for a file."""
  spec = sys.modules["__main__"].__spec__
  return spec.name.removesuffix(".__main__") if spec else ""
