"""The Python files of the packages, parsed once, and how a rule names the lines that break it."""

import ast
import pathlib
from collections.abc import Iterable, Iterator

ROOT = pathlib.Path(__file__).parents[1]
PACKAGES = ("replicator", "models", "experiments")
# By path from the root, such as `replicator/step/random.py`.
TREES = {str(path.relative_to(ROOT)): ast.parse(path.read_text(), str(path))
         for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))}


def check_none(offenders: Iterable[str]) -> None:
  """Fails with one line for each offender, such as `replicator/loop.py:7: imports models.gan`."""
  lines = list(offenders)
  assert not lines, "\n".join([f"{len(lines)} lines break this rule:", *lines])


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
  """(line, dotted name) of all imports, wherever they stand; a relative one begins with a dot."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      yield from ((node.lineno, alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      home = "." * node.level + (node.module or "")
      yield from ((node.lineno, f"{home}.{alias.name}") for alias in node.names)
