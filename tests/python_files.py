"""The Python files of the packages, parsed once, and how a rule names the lines that break it."""

import ast
import functools
import pathlib
from collections.abc import Iterable

ROOT = pathlib.Path(__file__).parents[1]
PACKAGES = ("replicator", "models", "experiments")


@functools.cache
def trees() -> dict[str, ast.Module]:
  """By path from the root, as `replicator/step/random.py`. The files of a new project are none."""
  return {str(path.relative_to(ROOT)): ast.parse(path.read_text(), str(path))
          for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))
          if "template" not in path.parts}


def check_none(offenders: Iterable[str]) -> None:
  """Fails with one line for each offender, such as `replicator/loop.py:7: imports models.gan`."""
  lines = list(offenders)
  assert not lines, "\n".join([f"{len(lines)} lines break this rule:", *lines])


@functools.cache
def imports(tree: ast.AST) -> list[tuple[int, str]]:
  """(line, dotted name) of all imports that run, wherever they stand."""
  for_types = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.If)
               and ast.unparse(node.test) == "TYPE_CHECKING" for inner in ast.walk(node)}
  found = []
  for node in ast.walk(tree):
    if id(node) in for_types:
      continue
    if isinstance(node, ast.Import):
      found += [(node.lineno, alias.name) for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
  return found
