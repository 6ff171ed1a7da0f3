"""Creates a new project: an experiment, its three networks, its settings and its tests.

    replicator new NAME [--from=EXPERIMENT]

The folder NAME has everything for a first run. With `--from=sngan`, the experiment is a copy of
this project's. Exit status: 0; 2 for a bad command line, or if the folder exists.
"""

import keyword
import pathlib
import re
import sys
from collections.abc import Sequence

from replicator.console import gin_files, programs
from replicator.console.command import Parser, status_of
from replicator.errors import UsageError, nearest

_TEMPLATE = pathlib.Path(__file__).parent / "template"
_NAME = "PROJECT"  # Placeholder for the project's name in the template's files and their names.


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line `argv` (default: this process's); returns the exit status."""
  return status_of(_write, argv, describe=None)


def _write(words: list[str]) -> int:
  parser = Parser(description="Creates a project of your own, ready to train and to test.")
  parser.add_argument("name", help="the name of the project, its folder and its experiment")
  parser.add_argument("--from", dest="source", metavar="EXPERIMENT",
                      help="start from a copy of an experiment; python -m experiments lists them")
  flags = parser.parse_args(words)
  name = flags.name
  _check(name)
  files = _files(name)
  if flags.source:
    files = {**files, **_copied(flags.source, name)}
    files.pop(f"models/{name}.py")
    files["README.md"] = re.sub(r"\| `models/.*\n", "", files["README.md"])
  if keyword.iskeyword(name) or name in _imported(files[f"experiments/{name}.py"]):
    raise UsageError(f"{name}: already means something else in the program; choose another name")
  for path, text in files.items():
    (pathlib.Path(name) / path).parent.mkdir(parents=True, exist_ok=True)
    (pathlib.Path(name) / path).write_text(text, encoding="utf-8")
  print("\n".join([*(f"wrote {name}/{path}" for path in sorted(files)),
                   f"next: cd {name}; python -m experiments.{name} --gin_file={name}.gin"]))
  return 0


def _check(name: str) -> None:
  """Raises a UsageError if a project cannot have this name here."""
  if not re.fullmatch("[a-z][a-z0-9_]*", name):
    raise UsageError(f"{name}: is also the name of a Python module; use lowercase letters, "
                     "digits and underscores")
  if any((gin_files.OURS / room / each).exists() for room in ("experiments", "models")
         for each in (name, f"{name}.py")):
    raise UsageError(f"{name}: Replicator has a module of this name, which yours would hide; "
                     "choose another name")
  if pathlib.Path(name).exists():
    raise UsageError(f"{name}: already exists; choose another name, or move it")


def _imported(program: str) -> set[str]:
  """Returns the names that a program imports."""
  lines = re.findall(r"(?m)^(?:from \S+ )?import ([^#\n]+)", program)
  return {each.split(" as ")[-1].strip() for line in lines for each in line.split(",")}


def _files(name: str) -> dict[str, str]:
  """Returns the contents of the template's files, by path."""
  found = {file.relative_to(_TEMPLATE).as_posix(): file.read_text(encoding="utf-8")
           for file in sorted(_TEMPLATE.rglob("*")) if file.suffix != ".pyc" and file.is_file()}
  for hidden in ("gitignore", "dockerignore"):  # In this repository, git would apply a .gitignore.
    found[f".{hidden}"] = found.pop(hidden)
  return {path.replace(_NAME, name): text.replace(_NAME, name) for path, text in found.items()}


def _copied(experiment: str, name: str) -> dict[str, str]:
  """Returns a renamed copy of an experiment, and of the gin file in its docstring."""
  found = programs.experiments()
  program = found[experiment].read_text(encoding="utf-8") if experiment in found else ""
  shown = re.search(rf"experiments\.{experiment} --gin_file=(\S+)", program)
  if not shown:
    raise UsageError(f"--from={experiment}: no such experiment, or its docstring does not show a "
                     f"gin file.{nearest(experiment, found)}")
  settings = pathlib.Path(gin_files.found(shown[1])).read_text(encoding="utf-8")
  shown_as = f"experiments.{name} --gin_file={name}.gin"
  program, settings = (
      re.sub(rf"\btrain_{experiment}\b", f"train_{name}", text.replace(shown[0], shown_as))
      for text in (program, settings))
  return {f"experiments/{name}.py": program, f"configs/{name}.gin": settings}


if __name__ == "__main__":
  sys.exit(main())
