"""The programs of `python -m`: experiments, including the user's, and `replicator` commands."""

import ast
import importlib.util
import pathlib

from replicator.console.gin_files import OURS
from replicator.errors import UsageError, nearest

COMMANDS = {
    "doctor": "replicator.doctor", "sweep": "replicator.tools.sweeps",
    "sample": "experiments.sample", "play": "experiments.play",
    "evaluate": "experiments.evaluate", "export": "experiments.export",
    "launch": "replicator.tools.launch", "compare": "replicator.tools.compare",
    "rerun": "replicator.tools.rerun", "replay": "replicator.app.replay",
    "new": "replicator.tools.new",
    "convert": "models.vision.convert", "preview": "models.vision.preview"}
"""The modules of commands, by the word after `replicator`."""


def experiments() -> dict[str, pathlib.Path]:
  """Finds the files in all folders `experiments/` on the path, by name, without importing them."""
  spec = importlib.util.find_spec("experiments")
  places = map(pathlib.Path, (spec and spec.submodule_search_locations) or [])
  commands = {module.rpartition(".")[2] for module in COMMANDS.values()}
  # Python takes the first of two files with the same name.
  return {file.stem: file for place in reversed([*places, OURS / "experiments"])
          for file in sorted(place.glob("*.py"))
          if not file.stem.startswith("_") and file.stem not in commands}


def summary(file: pathlib.Path) -> str:
  """Returns the first line of the docstring of a Python file; '' if it has none."""
  try:
    docstring = ast.get_docstring(ast.parse(file.read_bytes()))
  except (OSError, SyntaxError, ValueError):
    docstring = None
  return (docstring or "").partition("\n")[0]


def file_of(module: str) -> pathlib.Path:
  """Returns the file of one of `COMMANDS`."""
  path = OURS / module.replace(".", "/")
  return path / "__main__.py" if path.is_dir() else path.with_suffix(".py")


def name_of(program: str) -> str:
  """Returns the short name of a program, a module or a file: `experiments.sngan -> sngan`."""
  return pathlib.Path(program).stem if program.endswith(".py") else program.rpartition(".")[2]


def program_of(words: list[str]) -> tuple[str, list[str]]:
  """Returns the module or file.py that a `replicator` command line runs, and its arguments.

      ["run", "sngan", "--eager"] -> "experiments.sngan", ["--eager"]

  Raises:
    UsageError: there is no such command or experiment.
  """
  command, *rest = words
  if command in COMMANDS:
    return COMMANDS[command], rest
  if command != "run":
    raise UsageError(f"replicator {command}: no such command."
                     f"{nearest(command, [*COMMANDS, 'run'])} replicator --help lists them")
  if not rest or rest[0].startswith("-"):
    raise UsageError("replicator run: add the name of an experiment, as in replicator run sngan "
                     "--gin_file=sngan_digits.gin; python -m experiments lists them")
  name, *rest = rest
  if "." in name:
    return name, rest
  if name not in experiments():
    raise UsageError(f"replicator run {name}: no such experiment.{nearest(name, experiments())} "
                     "python -m experiments lists them")
  return f"experiments.{name}", rest
