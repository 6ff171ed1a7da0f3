"""Flags of commands that take a run, such as `replicator sample` and `replicator replay`."""

import argparse

from replicator.console.command import Parser


def add_loading_flags(parser: Parser) -> None:
  """Adds `--step` and the program flags, for a command that loads a checkpoint of a run."""
  parser.add_argument("--step", type=_checkpoint_step, metavar="N",
                      help="the step of a checkpoint, or 'best'; by default the newest")
  add_program_flags(parser)


def add_program_flags(parser: Parser) -> None:
  """Adds the flags of a command that uses the program of a run, and `--debug`."""
  parser.add_argument("--gin_param", action="append", default=[], metavar='"a.b = 1"',
                      help="a gin binding that overrides the run's, such as the path of the data")
  parser.add_argument("--yes", action="store_true",
                      help="use a program that is not an experiment of this project, or modules "
                           "from the folder where the run was started")
  parser.add_argument("--debug", action="store_true", help="show tracebacks")


def _checkpoint_step(text: str) -> int | str:
  """Parses the value of `--step`: the number of a step, or 'best'."""
  if text != "best" and not text.isdigit():
    raise argparse.ArgumentTypeError(f"'{text}': must be the step of a checkpoint, or 'best'")
  return text if text == "best" else int(text)
