"""The program of a run, imported as a module: what it defines exists once in the process."""

import ast
import importlib
import importlib.util
import os
import pathlib
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from replicator.app.experiment import main_of
from replicator.errors import UsageError, first_line


def main_of_run(facts: Mapping[str, Any]) -> Callable[[str], None]:
  """The `main` that the program of a run passes to `replicator.app.run`; it is not called.

  `facts` are those of `run.json`. The program is imported under its own name, so that its classes
  are those that `import` gives, and then its block `if __name__ == "__main__":` runs up to the call
  of `app.run`, with the command line of the run.

  Raises:
    UsageError: the program is missing, cannot be imported, or has no such block.
  """
  words, file = facts["program"], facts["program_file"]
  if file is None:
    raise UsageError("the run was trained in a notebook, and has no program; write "
                     "replicator.load(run, main=...), with the function that called train")
  name = words[1] if words[:1] == ["-m"] else None
  found = []

  def program() -> None:
    found.append(_imported(name, file))

  arguments, sys.argv = sys.argv, [str(file), *facts["argv"]]
  try:
    main = main_of(program)
    if main is None:
      main = main_of(lambda: _run_main_block(found[0]))
    elif not found:
      raise UsageError(f"{name or file}: calls app.run(main) when it is imported; write "
                       'if __name__ == "__main__": above the call')
  finally:
    sys.argv = arguments
  if main is None:
    raise UsageError(f"{name or file}: does not call replicator.app.run(main) in a block "
                     'if __name__ == "__main__":, as an experiment does')
  return main


def _imported(name: str | None, file: str) -> types.ModuleType:
  try:
    if name is None:
      return _module_of_file(file)
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
      name, spec = f"{name}.__main__", importlib.util.find_spec(f"{name}.__main__")
    if spec is None:
      raise UsageError("there is no such module")
    return _loaded_from(str(spec.origin)) or importlib.import_module(name)
  except Exception as error:  # A program may raise any.
    where = "" if name is None else f" (it was run from {os.path.dirname(file)})"
    raise UsageError(f"the program of the run, {name or file}, cannot be imported: "
                     f"{first_line(error)}{where}") from error


def _module_of_file(file: str) -> types.ModuleType:
  """The module of a program that was started as `python file.py`."""
  if loaded := _loaded_from(file):
    return loaded
  if not os.path.isfile(file):
    raise UsageError("the file is missing; put it back")
  name = pathlib.Path(file).stem
  if name in sys.modules:
    raise UsageError(f"another module is called '{name}'; load the run in a process of its own")
  folder = os.path.dirname(file)
  if folder not in sys.path:  # Python puts it there for the modules beside a program.
    sys.path.insert(0, folder)
  return importlib.import_module(name)


def _loaded_from(file: str) -> types.ModuleType | None:
  """The module that this process has of a file; also if it is the program that runs."""
  return next((module for module in list(sys.modules.values())
               if getattr(module, "__file__", None) and os.path.isfile(file)
               and os.path.abspath(module.__file__ or "") == os.path.abspath(file)), None)


def _run_main_block(module: types.ModuleType) -> None:
  file = str(module.__file__)
  tree = ast.parse(pathlib.Path(file).read_bytes(), file)
  body = [statement for block in tree.body if isinstance(block, ast.If)
          and ast.unparse(block.test) == "__name__ == '__main__'" for statement in block.body]
  exec(compile(ast.Module(body, []), file, "exec"), vars(module))
